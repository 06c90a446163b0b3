// Three drawings, one below the other: squares of ranks by ranks, darker for more rows; bars of experts, in the
// colors of the ranks that hold them; squares for waits. The numbers are the titles of shapes, which viewers show as
// tooltips.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/moe/commands.hpp"
#include "cli/svg.hpp"

namespace accord::cli {
namespace {

constexpr double kMoeLeft = 70, kMoeTop = 64, kMoeGap = 70, kBars = 160, kMoeWidth = 900;

std::string text_at(double x, double y, std::string_view text, std::string_view more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, more, svg_escaped(text));
}

/// A color from white (0) to blue (1).
std::string shade(double part) {
  const auto channel = [&](double least) { return static_cast<int>(std::lround(255 - part * (255 - least))); };
  return fmt::format("#{:02x}{:02x}{:02x}", channel(31), channel(95), channel(168));
}

std::string color_of_rank(int rank) { return fmt::format("hsl({}, 45%, 52%)", rank * 47 % 360); }

/// The value and the title of one square of a matrix.
struct Cell {
  double value = 0;
  std::string title;
};

class MoePage {
 public:
  explicit MoePage(const JoinedReport& joined) : joined_(joined), report_(joined.all) {
    side_ = std::clamp(480.0 / report_.size, 3.0, 40.0);
  }

  std::string document() {
    double y = kMoeTop;
    std::string body = text_at(12, 28,
                               fmt::format("group \"{}\": {} ranks, {} experts, top {}, {} maps", report_.group,
                                           report_.size, report_.experts, report_.top_k, report_.prepares),
                               " font-size=\"16\"");
    body += text_at(12, y - 12, "rows from each rank (down) to each (across)");
    body += matrix(y, [&](int from, int to) {
      const auto rows = report_.traffic[static_cast<std::size_t>(from) * report_.size + to];
      return Cell{static_cast<double>(rows), fmt::format("rank {} to rank {}: {} rows", from, to, rows)};
    });
    y += side_ * report_.size + kMoeGap;
    body += text_at(12, y - 12, "choices of each expert, in the color of the first rank that holds it");
    body += bars(y);
    y += kBars + kMoeGap;
    const bool has_waits =
        std::any_of(joined_.waits.begin(), joined_.waits.end(), [](const auto& it) { return !it.empty(); });
    if (has_waits) {
      body += text_at(12, y - 12, "seconds that each rank (down) waited for each (across)");
      body += matrix(y, [&](int rank, int other) {
        const std::vector<double>& waits = joined_.waits[static_cast<std::size_t>(rank)];
        if (waits.empty()) return Cell{0, fmt::format("there is no report of rank {}", rank)};
        const double seconds = waits[static_cast<std::size_t>(other)];
        return Cell{seconds, fmt::format("rank {} for rank {}: {:.3f} s", rank, other, seconds)};
      });
      y += side_ * report_.size + kMoeGap;
    }
    const double width = std::max(kMoeLeft + kMoeWidth, kMoeLeft + side_ * report_.size) + 30;
    return svg_head(static_cast<int>(width), static_cast<int>(y), "") + body + "</svg>\n";
  }

 private:
  template <typename CellOf>
  std::string matrix(double top, CellOf cell_of) const {
    double most = 0;
    for (int row = 0; row < report_.size; ++row)
      for (int column = 0; column < report_.size; ++column) most = std::max(most, cell_of(row, column).value);
    std::string out;
    for (int row = 0; row < report_.size; ++row) {
      if (side_ >= 10 || row % 16 == 0) out += text_at(kMoeLeft - 30, top + side_ * (row + 0.7), std::to_string(row));
      for (int column = 0; column < report_.size; ++column) {
        const Cell cell = cell_of(row, column);
        out += fmt::format(
            "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" stroke=\"#ffffff\" "
            "stroke-width=\"0.5\"><title>{}</title></rect>\n",
            kMoeLeft + side_ * column, top + side_ * row, side_, side_, shade(most > 0 ? cell.value / most : 0),
            svg_escaped(cell.title));
      }
    }
    return out;
  }

  std::string bars(double top) const {
    const double most =
        static_cast<double>(std::max<std::int64_t>(1, *std::max_element(report_.loads.begin(), report_.loads.end())));
    const double step = kMoeWidth / report_.experts;
    std::vector<int> holder(static_cast<std::size_t>(report_.experts), -1);
    for (int rank = report_.size; rank-- > 0;)
      for (const int expert : report_.placement[static_cast<std::size_t>(rank)])
        holder[static_cast<std::size_t>(expert)] = rank;
    std::string out;
    for (int expert = 0; expert < report_.experts; ++expert) {
      const auto e = static_cast<std::size_t>(expert);
      const double height = kBars * static_cast<double>(report_.loads[e]) / most;
      out += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"><title>{}</title></rect>\n",
          kMoeLeft + step * expert, top + kBars - height, std::max(0.5, step * 0.9), std::max(0.5, height),
          color_of_rank(holder[e]),
          svg_escaped(fmt::format("expert {} on rank {}: {} choices", expert, holder[e], report_.loads[e])));
    }
    return out + text_at(kMoeLeft, top + kBars + 18, fmt::format("0 to {}", report_.experts - 1));
  }

  const JoinedReport& joined_;
  const expert::Report& report_;
  double side_ = 0;
};

}  // namespace

std::string moe_chart(const JoinedReport& report) { return MoePage(report).document(); }

}  // namespace accord::cli
