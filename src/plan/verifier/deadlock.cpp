// Each stuck lane waits for an event that another stuck lane would produce (each event has a producer, otherwise the
// pairing check would have failed). Following the chain from a lane to the producer's lane must reach some lane a
// second time; from there on the chain is the cycle.

#include "plan/verifier/deadlock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace accord::plan {
namespace {

constexpr std::size_t kMaxShown = 4;

const Step& step_at(const Plan& plan, const StepPlace& place) {
  const Program& program = plan.programs[static_cast<std::size_t>(place.rank)];
  return program.lanes[static_cast<std::size_t>(place.lane)].steps[static_cast<std::size_t>(place.step)];
}

bool same_lane(const StepPlace& a, const StepPlace& b) { return a.rank == b.rank && a.lane == b.lane; }

// Whether `candidate` of `rank` produces what a lane of `waiting_rank` waits for at `waiting`.
bool makes(Rank rank, const Step& candidate, Rank waiting_rank, const Step& waiting) {
  if (waiting.kind == StepKind::kWait) {
    return candidate.kind == StepKind::kSignal && rank == waiting.peer && candidate.peer == waiting_rank &&
           candidate.id == waiting.id;
  }
  if (waiting.kind == StepKind::kLaneBarrier) {
    return candidate.kind == StepKind::kLaneBarrier && rank == waiting_rank && candidate.id == waiting.id;
  }
  return candidate.kind == StepKind::kPutPackets &&
         std::ranges::find(waiting.sources, candidate.destinations[0]) != waiting.sources.end();
}

// The stuck lane that has yet to produce what `place` waits for.
std::optional<StepPlace> culprit(const Plan& plan, const std::vector<StepPlace>& stuck, const StepPlace& place) {
  const Step& waiting = step_at(plan, place);
  for (const StepPlace& other : stuck) {
    const std::vector<Lane>& lanes = plan.programs[static_cast<std::size_t>(other.rank)].lanes;
    const std::vector<Step>& steps = lanes[static_cast<std::size_t>(other.lane)].steps;
    const bool at_same_barrier = waiting.kind == StepKind::kLaneBarrier && step_at(plan, other) == waiting;
    if (at_same_barrier && other.rank == place.rank) continue;
    for (auto step = static_cast<std::size_t>(other.step); step < steps.size(); ++step) {
      if (makes(other.rank, steps[step], place.rank, waiting)) return other;
    }
  }
  return std::nullopt;
}

}  // namespace

Status deadlock_error(const Plan& plan, const std::vector<StepPlace>& stuck) {
  std::vector<StepPlace> way = {stuck.front()};
  std::size_t circle = 0;
  while (true) {
    const auto next = culprit(plan, stuck, way.back());
    if (!next) break;
    const auto met = std::ranges::find_if(way, [&](const StepPlace& place) { return same_lane(place, *next); });
    if (met != way.end()) {
      circle = static_cast<std::size_t>(met - way.begin());
      break;
    }
    way.push_back(*next);
  }
  std::string text = "waits for ever (deadlock)";
  for (std::size_t i = circle + 1; i < way.size() && i < circle + kMaxShown; ++i) {
    text += fmt::format(", as {} comes first", place_text(plan, way[i]));
  }
  if (way.size() > circle + kMaxShown) text += fmt::format(", and so on round {} lanes", way.size() - circle);
  return step_error(plan, way[circle], step_at(plan, way[circle]), text);
}

}  // namespace accord::plan
