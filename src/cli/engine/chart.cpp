// Three parts, one below the other. The upper two share one axis, on which each op of rank 0 is a column; ops that do
// not run as steps have no column. Descriptions are the titles of boxes, which viewers show as tooltips.
#include "cli/engine/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/text.hpp"
#include "cli/plan/commands.hpp"
#include "cli/svg.hpp"

namespace accord::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLeft = 110;
constexpr double kWidth = 1000;
constexpr double kTop = 70;
constexpr double kArenaHeight = 300;
constexpr double kOpsHeight = 160;
constexpr double kGap = 60;
constexpr double kBarHeight = 18;
constexpr double kRankHeight = 26;

std::string_view color_of(const Json& op) {
  const std::string name = op["op"];
  if (op.contains("collective")) return "#d9822b";
  if (op["weight_bytes"].get<std::uint64_t>() > 0) return "#4a7db5";
  if (name.find("attention") != std::string::npos) return "#5a9e6f";
  return "#a9a9a9";
}

constexpr std::pair<std::string_view, std::string_view> kLegend[] = {
    {"#4a7db5", "reads weights"}, {"#5a9e6f", "attention"}, {"#d9822b", "collective"}, {"#a9a9a9", "other"}};

std::string box(double x, double y, double width, double height, std::string_view color, std::string_view title) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" stroke=\"#ffffff\" "
      "stroke-width=\"0.4\"><title>{}</title></rect>\n",
      x, y, std::max(width, 0.5), std::max(height, 0.5), color, svg_escaped(title));
}

std::string label(double x, double y, std::string_view text) {
  return fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n", x, y, svg_escaped(text));
}

class Chart {
 public:
  explicit Chart(const Json& report) : report_(report), first_(report["ranks"][0]) {
    double at = 0;
    for (const Json& op : first_["ops"]) {
      starts_.push_back(at);
      if (op["runs"] == "step") at += 1;
    }
    starts_.push_back(at);
    column_ = kWidth / std::max(at, 1.0);
  }

  std::string document() const {
    const double ranks_top = kTop + kArenaHeight + kGap + kOpsHeight + kGap;
    const auto height = static_cast<int>(ranks_top + kRankHeight * static_cast<double>(report_["ranks"].size()) + 30);
    std::string out = svg_head(static_cast<int>(kLeft + kWidth) + 40, height, "");
    out += fmt::format("<text x=\"12\" y=\"28\" font-size=\"16\">{}</text>\n", svg_escaped(title()));
    out += arena() + ops() + ranks(ranks_top);
    return out + "</svg>\n";
  }

 private:
  std::string title() const {
    std::string text = report_["package"].get<std::string>();
    for (const auto& [name, size] : first_["sizes"].items()) text += fmt::format(", {} = {}", name, size.dump());
    return text;
  }

  double x_of(int op) const { return kLeft + column_ * starts_[static_cast<std::size_t>(op)]; }

  std::string arena() const {
    const double bytes = std::max(1.0, first_["arena_bytes"].get<double>());
    std::string out = label(12, kTop - 10,
                            "arena of rank 0: " + bytes_text(first_["arena_bytes"].get<std::size_t>()) +
                                ", each piece from the op that writes it to the last op that reads it");
    for (const Json& piece : first_["arena"]) {
      const int first = piece["first"];
      const int last = piece["last"];
      const double from = x_of(first);
      const double to = x_of(std::min<int>(last + 1, static_cast<int>(starts_.size()) - 1));
      const double top = kTop + kArenaHeight * piece["offset"].get<double>() / bytes;
      const bool scratch = piece["value"].is_null();
      const std::string words = fmt::format("{}: {} at {}", scratch ? "scratch" : piece["value"].get<std::string>(),
                                            bytes_text(piece["bytes"].get<std::size_t>()), piece["offset"].dump());
      out += box(from, top, std::max(to - from, column_), kArenaHeight * piece["bytes"].get<double>() / bytes,
                 scratch ? "#cccccc" : color(first), words);
    }
    return out + label(12, kTop + 12, "0 B") +
           label(12, kTop + kArenaHeight, bytes_text(first_["arena_bytes"].get<std::size_t>()));
  }

  std::string_view color(int op) const {
    return op < static_cast<int>(first_["ops"].size()) ? color_of(first_["ops"][static_cast<std::size_t>(op)])
                                                       : "#888888";
  }

  std::string ops() const {
    const bool timed = report_["runs"].get<int>() > 0;
    const char* what = timed ? "seconds" : "bytes";
    double most = 0;
    for (const Json& op : first_["ops"]) most = std::max(most, op[what].get<double>());
    const double base = kTop + kArenaHeight + kGap + kOpsHeight;
    const std::string peak = timed ? time_text(most) : bytes_text(static_cast<std::size_t>(most));
    std::string out = label(12, base - kOpsHeight - 10,
                            fmt::format("{} of each op, up to {}", timed ? "time" : "bytes read and written", peak));
    for (std::size_t i = 0; i < first_["ops"].size(); ++i) {
      const Json& op = first_["ops"][i];
      if (op["runs"] != "step") continue;
      const double high = most > 0 ? kOpsHeight * op[what].get<double>() / most : 0;
      const std::string value = timed ? time_text(op[what].get<double>()) : bytes_text(op[what].get<std::size_t>());
      out += box(x_of(static_cast<int>(i)), base - high, column_, high, color_of(op),
                 fmt::format("{} {}: {}", op["op"].get<std::string>(), op["module"].get<std::string>(), value));
    }
    double x = kLeft;
    for (const auto& [color, text] : kLegend) {
      out += box(x, base + 14, 12, 12, color, text) + label(x + 18, base + 24, text);
      x += 150;
    }
    return out;
  }

  std::string ranks(double top) const {
    double most = 1;
    for (const Json& rank : report_["ranks"]) most = std::max(most, weights(rank));
    std::string out = label(12, top - 10, "weights of each rank: blue for its shard, grey for what every rank holds");
    for (std::size_t i = 0; i < report_["ranks"].size(); ++i) {
      const Json& rank = report_["ranks"][i];
      const double y = top + kRankHeight * static_cast<double>(i);
      const double shard = kWidth * rank["shard_bytes"].get<double>() / most;
      const auto shard_bytes = rank["shard_bytes"].get<std::size_t>();
      const auto common_bytes = rank["replicated_bytes"].get<std::size_t>();
      out += label(12, y + 14, fmt::format("rank {}", i));
      out += box(kLeft, y, shard, kBarHeight, "#4a7db5", "shard: " + bytes_text(shard_bytes));
      out += box(kLeft + shard, y, kWidth * static_cast<double>(common_bytes) / most, kBarHeight, "#a9a9a9",
                 "on every rank: " + bytes_text(common_bytes));
    }
    return out;
  }

  static double weights(const Json& rank) {
    return rank["shard_bytes"].get<double>() + rank["replicated_bytes"].get<double>();
  }

  const Json& report_;
  const Json& first_;
  std::vector<double> starts_;  // indexed by op: number of columns before it
  double column_ = 1;
};

}  // namespace

std::string engine_chart(const Json& report) { return Chart(report).document(); }

}  // namespace accord::cli
