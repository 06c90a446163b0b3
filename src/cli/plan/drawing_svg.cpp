// Rows of ranks, columns of steps, lines between them. The title of each box describes its step.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "cli/plan/drawing.hpp"
#include "cli/svg.hpp"

namespace accord::cli {
namespace {

constexpr int kRowHeight = 44;
constexpr int kBoxHeight = 24;
constexpr int kPlanGap = 34;  // between columns, for the arrows
constexpr int kPlanTop = 56;
constexpr int kCharacter = 7;

std::string_view color_of(plan::StepKind kind) {
  switch (kind) {
    case plan::StepKind::kCopy: return "#d6e6f5";
    case plan::StepKind::kReduce: return "#f6dcc3";
    case plan::StepKind::kPutPackets: return "#d5ecd4";
    case plan::StepKind::kSignal:
    case plan::StepKind::kWait: return "#eeeeee";
    case plan::StepKind::kLaneBarrier: return "#e5dcf0";
  }
  return "#ffffff";
}

struct Box {
  int x = 0;
  int y = 0;
  int width = 0;
};

class PlanPage {
 public:
  explicit PlanPage(const Drawing& drawing) : drawing_(drawing) {
    for (const std::string& row : drawing.rows) margin_ = std::max(margin_, width_of(row) + 24);
    std::vector<int> widths(static_cast<std::size_t>(drawing.columns), 40);
    for (const DrawnStep& step : drawing.steps) {
      int& width = widths[static_cast<std::size_t>(step.column)];
      width = std::max(width, width_of(step.text) + 12);
    }
    int x = margin_;
    std::vector<int> lefts;
    for (const int width : widths) {
      lefts.push_back(x);
      x += width + kPlanGap;
    }
    width_ = x;
    for (const DrawnStep& step : drawing.steps) {
      const auto column = static_cast<std::size_t>(step.column);
      const int row = drawing.first_row[static_cast<std::size_t>(step.place.rank)] + step.place.lane;
      boxes_.push_back({lefts[column], kPlanTop + row * kRowHeight + (kRowHeight - kBoxHeight) / 2, widths[column]});
    }
    height_ = kPlanTop + static_cast<int>(drawing.rows.size()) * kRowHeight + 12;
  }

  std::string document(std::string_view title) const {
    std::string out =
        svg_head(std::max(width_, 24 + 10 * static_cast<int>(title.size())), height_,
                 "<marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" "
                 "orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"#444444\"/></marker>");
    out += fmt::format("<text x=\"12\" y=\"28\" font-size=\"16\">{}</text>\n", svg_escaped(title));
    for (std::size_t row = 0; row < drawing_.rows.size(); ++row) out += row_text(static_cast<int>(row));
    for (const Arrow& arrow : drawing_.arrows) out += arrow_text(arrow);
    for (std::size_t step = 0; step < boxes_.size(); ++step) out += box_text(step);
    return out + "</svg>\n";
  }

 private:
  static int width_of(std::string_view text) { return kCharacter * static_cast<int>(text.size()); }

  std::string row_text(int row) const {
    const int middle = kPlanTop + row * kRowHeight + kRowHeight / 2;
    return fmt::format(
        "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"#dddddd\"/>\n<text x=\"12\" y=\"{}\">{}</text>\n",
        margin_ - 8, middle, width_ - kPlanGap, middle, middle + 4,
        svg_escaped(drawing_.rows[static_cast<std::size_t>(row)]));
  }

  std::string box_text(std::size_t index) const {
    const DrawnStep& step = drawing_.steps[index];
    const Box& box = boxes_[index];
    return fmt::format(
        "<g><title>{}</title><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"{}\" "
        "stroke=\"#666666\"/><text x=\"{}\" y=\"{}\">{}</text></g>\n",
        svg_escaped(step.title), box.x, box.y, box.width, kBoxHeight, color_of(step.kind), box.x + 6, box.y + 16,
        svg_escaped(step.text));
  }

  std::string arrow_text(const Arrow& arrow) const {
    const Box& from = boxes_[arrow.from];
    const Box& to = boxes_[arrow.to];
    return fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\"{} marker-end=\"url(#head)\"/>\n",
                       from.x + from.width, from.y + kBoxHeight / 2, to.x, to.y + kBoxHeight / 2,
                       arrow.is_signal ? "#999999" : "#2f5f8f", arrow.is_signal ? " stroke-dasharray=\"4 3\"" : "");
  }

  const Drawing& drawing_;
  std::vector<Box> boxes_;  // indexed by step
  int margin_ = 0;
  int width_ = 0;
  int height_ = 0;
};

}  // namespace

std::string to_svg(const Drawing& drawing, const plan::Plan& plan) {
  return PlanPage(drawing).document(fmt::format("{} ({}, {} ranks)", plan.name, to_string(plan.collective), plan.size));
}

}  // namespace accord::cli
