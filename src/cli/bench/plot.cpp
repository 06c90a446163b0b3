// Two charts per operation, side by side: time and bus bandwidth over bytes, with logarithmic axes. Lines are
// medians; the tooltip of a point has its figures. Behind the lines, each range of neighbouring sizes at which one
// algorithm served the first contender has its own background, with the name of the algorithm. A range ends half way
// (on the axis) to the next size.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "base/text.hpp"
#include "cli/bench/report.hpp"
#include "cli/svg.hpp"

namespace accord::cli {
namespace {

constexpr int kWidth = 520;  // of a chart, without the margins
constexpr int kHeight = 260;
constexpr int kLeft = 74;   // for the numbers of an axis
constexpr int kGap = 96;    // between the charts of a row
constexpr int kAbove = 76;  // title and names of algorithms
constexpr int kBelow = 46;  // sizes
constexpr int kRow = kAbove + kHeight + kBelow;
constexpr int kHead = 34;
constexpr int kNames = 190;  // of contenders, beside the charts of a row
constexpr int kNameHeight = 16;
constexpr std::array kColors = {"#1f5fa8", "#c2571a", "#3a8a3a", "#8a3f97", "#7a6a2f", "#b0304f"};
constexpr std::array kBackgrounds = {"#e8f0f8", "#faf0e2", "#e9f4e8", "#f2eaf6", "#f4f2e2", "#f8e9ec"};

using Rows = std::vector<const BenchRow*>;

std::string color_of(std::size_t contender) {
  constexpr std::size_t kTurn = 137;  // degrees on the circle of hues
  return contender < kColors.size() ? kColors[contender] : fmt::format("hsl({}, 65%, 42%)", contender * kTurn % 360);
}

// A logarithmic axis.
struct Axis {
  double low = 0, high = 1;
  double share(double value) const { return (std::log(value) - low) / (high - low); }
};

Axis axis_over(double least, double most, double base) {
  const double step = std::log(base);
  Axis axis{std::floor(std::log(least) / step + 1e-9) * step, std::ceil(std::log(most) / step - 1e-9) * step};
  if (axis.high <= axis.low) axis.high = axis.low + step;
  return axis;
}

std::string short_bytes(std::size_t bytes) {
  const char* const units[] = {"", "k", "M", "G"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && bytes % 1024 == 0 && unit < 3; ++unit) bytes /= 1024;
  return fmt::format("{}{}", bytes, units[unit]);
}

std::string decade_text(double value) {
  return value < 1 ? fmt::format("{:.{}f}", value, static_cast<int>(std::lround(-std::log10(value))))
                   : fmt::format("{:.0f}", value);
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view text, std::string_view more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     svg_escaped(text));
}

// One chart: its position and its data.
struct Chart {
  int x = 0, y = 0;  // upper left corner of the plot area
  std::string_view title;
  std::function<double(const BenchRow&)> value;
  const BenchReport& report;
  const Rows& rows;
  Axis bytes, values;

  double at_bytes(double place) const { return x + bytes.share(place) * kWidth; }
  double at_value(double place) const { return y + (1 - values.share(place)) * kHeight; }
};

Rows of_contender(const Rows& rows, const std::string& contender) {
  Rows found;
  for (const BenchRow* row : rows)
    if (row->contender == contender) found.push_back(row);
  return found;
}

std::vector<std::string> contenders_of(const Rows& rows) {
  std::vector<std::string> names;
  for (const BenchRow* row : rows)
    if (std::find(names.begin(), names.end(), row->contender) == names.end()) names.push_back(row->contender);
  return names;
}

// The backgrounds of the algorithms that served the first contender.
std::string backgrounds_text(const Chart& chart) {
  const Rows line = of_contender(chart.rows, contenders_of(chart.rows).front());
  std::vector<std::string> names;
  std::string out;
  double left = chart.x;
  int regions = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const std::string& algorithm = line[i]->measured.algorithm;
    if (i + 1 < line.size() && line[i + 1]->measured.algorithm == algorithm) continue;
    const double right =
        i + 1 == line.size()
            ? chart.x + kWidth
            : chart.at_bytes(std::sqrt(static_cast<double>(line[i]->bytes) * static_cast<double>(line[i + 1]->bytes)));
    auto name = std::find(names.begin(), names.end(), algorithm);
    if (name == names.end()) name = names.insert(names.end(), algorithm);
    const auto color = static_cast<std::size_t>(name - names.begin()) % kBackgrounds.size();
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>\n", left, chart.y,
                       right - left, kHeight, kBackgrounds[color]);
    // Above the frame. Neighbouring names alternate between two heights, so that names of short ranges do not
    // overlap.
    const double height = chart.y - (regions++ % 2 == 0 ? 6 : 18);
    out += text_at((left + right) / 2, height, "middle", algorithm, " fill=\"#555555\" font-size=\"11\"");
    left = right;
  }
  return out;
}

std::string axes_text(const Chart& chart) {
  std::string out;
  for (double decade = std::exp(chart.values.low); decade <= std::exp(chart.values.high) * 1.001; decade *= 10) {
    const double y = chart.at_value(decade);
    out += fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"#cccccc\"/>\n", chart.x, y,
                       chart.x + kWidth, y);
    out += text_at(chart.x - 6, y + 4, "end", decade_text(decade));
  }
  const auto least = static_cast<std::size_t>(std::llround(std::exp(chart.bytes.low)));
  const int powers = static_cast<int>(std::lround((chart.bytes.high - chart.bytes.low) / std::log(2)));
  const int step = std::max(1, (powers + 12) / 13);
  for (int power = 0; power <= powers; power += step) {
    const std::size_t bytes = least << power;
    const double x = chart.at_bytes(static_cast<double>(bytes));
    out += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#888888\"/>\n", x,
                       chart.y + kHeight, chart.y + kHeight + 5);
    out += text_at(x, chart.y + kHeight + 18, "middle", short_bytes(bytes));
  }
  out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#888888\"/>\n", chart.x,
                     chart.y, kWidth, kHeight);
  out += text_at(chart.x + kWidth / 2.0, chart.y + kHeight + 36, "middle", "bytes");
  return out + text_at(chart.x, chart.y - 34, "start", chart.title, " font-size=\"13\"");
}

std::string line_text(const Chart& chart, const Rows& line, std::string_view color) {
  std::string points, circles;
  for (const BenchRow* row : line) {
    const double x = chart.at_bytes(static_cast<double>(row->bytes)), y = chart.at_value(chart.value(*row));
    points += fmt::format("{:.1f},{:.1f} ", x, y);
    circles += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{} of {}: median {:.3f} us, minimum {:.3f}, "
        "maximum {:.3f}; bus {:.3f} GB/s; {}</title></circle>\n",
        x, y, color, row->operation->name, bytes_text(row->bytes), row->measured.median * 1e6,
        row->measured.minimum * 1e6, row->measured.maximum * 1e6, chart.report.bus_bandwidth(*row) * 1e-9,
        svg_escaped(row->measured.algorithm));
  }
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"/>\n{}", points, color,
                     circles);
}

std::string chart_text(Chart chart) {
  double least = std::numeric_limits<double>::max(), most = 0;
  std::size_t first = std::numeric_limits<std::size_t>::max(), last = 0;
  for (const BenchRow* row : chart.rows) {
    least = std::min(least, chart.value(*row));
    most = std::max(most, chart.value(*row));
    first = std::min(first, row->bytes);
    last = std::max(last, row->bytes);
  }
  chart.bytes = axis_over(static_cast<double>(first), static_cast<double>(last), 2);
  chart.values = axis_over(least, most, 10);
  std::string out = backgrounds_text(chart) + axes_text(chart);
  const std::vector<std::string> contenders = contenders_of(chart.rows);
  for (std::size_t i = 0; i < contenders.size(); ++i)
    out += line_text(chart, of_contender(chart.rows, contenders[i]), color_of(i));
  return out;
}

std::string names_text(const std::vector<std::string>& contenders, int x, int y) {
  std::string out;
  for (std::size_t i = 0; i < contenders.size(); ++i)
    out += text_at(x, y + kNameHeight * (static_cast<double>(i) + 1), "start", contenders[i],
                   fmt::format(" fill=\"{}\"", color_of(i)));
  return out;
}

}  // namespace

std::string to_svg(const BenchReport& report, std::string_view title) {
  std::string body;
  int y = kHead;
  int width = kLeft + 2 * kWidth + kGap + 30;
  for (const BenchOperation& operation : bench_operations()) {
    Rows rows;
    for (const BenchRow& row : report.rows)
      if (row.operation->name == operation.name && row.bytes > 0) rows.push_back(&row);
    if (rows.empty()) continue;
    body += text_at(16, y + 22, "start", operation.name, " font-size=\"15\" font-weight=\"bold\"");
    const auto time = [](const BenchRow& row) { return row.measured.median * 1e6; };
    const auto bandwidth = [&](const BenchRow& row) { return std::max(report.bus_bandwidth(row) * 1e-9, 1e-9); };
    body += chart_text({kLeft, y + kAbove, "time, us", time, report, rows, {}, {}});
    body += chart_text({kLeft + kWidth + kGap, y + kAbove, "bus bandwidth, GB/s", bandwidth, report, rows, {}, {}});
    y += kRow;
    const std::vector<std::string> contenders = contenders_of(rows);
    if (contenders.size() == 1) continue;
    const int right = kLeft + 2 * kWidth + kGap + 16, top = y - kRow + kAbove;
    body += names_text(contenders, right, top);
    width = right + kNames;
    y = std::max(y, top + kNameHeight * static_cast<int>(contenders.size() + 1));
  }
  return svg_head(width, y + 10, "") + text_at(16, 24, "start", title) + body + "</svg>\n";
}

}  // namespace accord::cli
