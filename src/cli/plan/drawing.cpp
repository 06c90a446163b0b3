// One walk through the plan. The column of a step is one behind the later of two: the previous step in its lane, and
// what the step waits for (a signal, packets, the other lanes at a barrier). Data that crosses ranks is followed from
// the step that wrote it to the step that reads it. A step that writes into a peer's scratch has an arrow to the step
// that reads it there.
#include "cli/plan/drawing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "plan/walk.hpp"

namespace accord::cli {
namespace {

using plan::Chunk;
using plan::Space;
using plan::Step;
using plan::StepKind;

char letter_of(Space space) {
  switch (space) {
    case Space::kInput: return 'i';
    case Space::kOutput: return 'o';
    case Space::kScratch: return 's';
    case Space::kPackets: return 'p';
    case Space::kPartials: return 'f';
    case Space::kMulticast: return 'm';
  }
  return '?';
}

// Short name of a chunk: "s2", or "1.s2" for a chunk of another rank.
std::string short_text(const Chunk& chunk, Rank rank) {
  const std::string own = fmt::format("{}{}", letter_of(chunk.space), chunk.index);
  if (chunk.rank == plan::kEveryRank) return "*." + own;
  return chunk.rank == rank ? own : fmt::format("{}.{}", chunk.rank, own);
}

std::string short_text(const std::vector<Chunk>& chunks, Rank rank) {
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (i + 1 < chunks.size() && i + 1 == kShown) {
      text += fmt::format(",..{} more", chunks.size() - i);
      break;
    }
    if (i > 0) text += ",";
    text += short_text(chunks[i], rank);
  }
  return text;
}

std::string short_text(const Step& step, Rank rank) {
  switch (step.kind) {
    case StepKind::kSignal: return fmt::format("sig {}#{}", step.peer, step.id);
    case StepKind::kWait: return fmt::format("wait {}#{}", step.peer, step.id);
    case StepKind::kLaneBarrier: return fmt::format("bar #{}", step.id);
    case StepKind::kCopy:
    case StepKind::kReduce:
    case StepKind::kPutPackets: break;
  }
  const std::string_view verb = step.kind == StepKind::kCopy ? "cp" : step.kind == StepKind::kReduce ? "add" : "put";
  return fmt::format("{} {}>{}", verb, short_text(step.sources, rank), short_text(step.destinations, rank));
}

class Layout : public plan::StepVisitor {
 public:
  explicit Layout(const plan::Plan& plan)
      : size_(plan.size), next_(static_cast<std::size_t>(plan::first_lanes(plan).back()), 0) {}

  void arrive(int lane, int, const plan::StepPlace& place, const Step& barrier) override {
    int& column = barriers_[{place.rank, barrier.id}];
    column = std::max(column, next_[static_cast<std::size_t>(lane)]);
  }

  Status step(int lane, int, const plan::StepPlace& place, const Step& step) override {
    const std::size_t self = drawing.steps.size();
    int column = next_[static_cast<std::size_t>(lane)];
    const auto after = [&](std::size_t other, bool is_signal) {
      column = std::max(column, drawing.steps[other].column + 1);
      if (drawing.steps[other].place.rank != place.rank) drawing.arrows.push_back({other, self, is_signal});
    };
    if (step.kind == StepKind::kWait) after(signals_.at({step.peer, place.rank, step.id}), true);
    if (step.kind == StepKind::kLaneBarrier) column = barriers_[{place.rank, step.id}];
    for (const Chunk& source : singles(step.sources)) {
      const auto writer = writers_.find(key(source));
      if (writer != writers_.end()) after(writer->second, false);
    }
    if (step.kind == StepKind::kSignal) signals_[{place.rank, step.peer, step.id}] = self;
    for (const Chunk& destination : singles(step.destinations)) writers_[key(destination)] = self;
    drawing.steps.push_back({place, step.kind, column, short_text(step, place.rank), to_string(step)});
    drawing.columns = std::max(drawing.columns, column + 1);
    next_[static_cast<std::size_t>(lane)] = column + 1;
    return {};
  }

  Drawing drawing;

 private:
  using Key = std::tuple<Rank, Space, int>;
  static Key key(const Chunk& chunk) { return {chunk.rank, chunk.space, chunk.index}; }

  std::vector<Chunk> singles(const std::vector<Chunk>& chunks) const {
    std::vector<Chunk> all;
    for (const Chunk& chunk : chunks)
      for (const Chunk& single : plan::single_chunks(chunk, size_)) all.push_back(single);
    return all;
  }

  int size_;
  std::vector<int> next_;  // next free column, by lane
  std::map<std::tuple<Rank, Rank, int>, std::size_t> signals_;
  std::map<std::tuple<Rank, int>, int> barriers_;
  std::map<Key, std::size_t> writers_;
};

}  // namespace

Result<Drawing> draw(const plan::Plan& plan) {
  Layout layout(plan);
  ACCORD_ASSIGN_OR_RETURN(const std::vector<plan::StepPlace> stuck,
                          plan::walk(plan, 1, plan::RoundGate::kOpen, layout));
  if (!stuck.empty())
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: {} waits forever; accord plan verify shows why",
                                                            to_string(plan), plan::place_text(plan, stuck.front())));
  Drawing& drawing = layout.drawing;
  for (Rank rank = 0; rank < plan.size; ++rank) {
    const std::size_t lanes = plan.programs[static_cast<std::size_t>(rank)].lanes.size();
    drawing.first_row.push_back(static_cast<int>(drawing.rows.size()));
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      drawing.rows.push_back(lanes == 1 ? fmt::format("rank {}", rank) : fmt::format("rank {} lane {}", rank, lane));
    }
  }
  return std::move(drawing);
}

std::string drawing_legend() {
  return "i input, o output, s scratch, f partials, p packets, m multicast; 1.s0: scratch[0] of rank 1, *.m0: of every "
         "rank\n"
         "cp copy, add reduce, put packets; sig R#I signal I to rank R, wait R#I for it; bar lanes meet\n";
}

std::string to_text(const Drawing& drawing, std::size_t width) {
  const auto columns = static_cast<std::size_t>(drawing.columns);
  std::vector<std::vector<std::string>> cells(drawing.rows.size(), std::vector<std::string>(columns));
  std::vector<std::size_t> widths(columns, 1);
  for (const DrawnStep& step : drawing.steps) {
    const int first_row = drawing.first_row[static_cast<std::size_t>(step.place.rank)];
    const std::size_t row = static_cast<std::size_t>(first_row) + static_cast<std::size_t>(step.place.lane);
    const auto column = static_cast<std::size_t>(step.column);
    cells[row][column] = step.text;
    widths[column] = std::max(widths[column], step.text.size());
  }
  std::size_t margin = 0;
  for (const std::string& row : drawing.rows) margin = std::max(margin, row.size());

  std::string text;
  for (std::size_t first = 0; first < columns;) {
    std::size_t last = first, used = margin;
    while (last < columns && (last == first || used + widths[last] + 3 <= width)) used += widths[last++] + 3;
    if (first > 0) text += "\n";
    for (std::size_t row = 0; row < cells.size(); ++row) {
      std::string line = fmt::format("{:<{}}", drawing.rows[row], margin);
      for (std::size_t c = first; c < last; ++c) line += fmt::format(" | {:<{}}", cells[row][c], widths[c]);
      text += line.substr(0, line.find_last_not_of(" |") + 1) + "\n";
    }
    first = last;
  }
  return text;
}

}  // namespace accord::cli
