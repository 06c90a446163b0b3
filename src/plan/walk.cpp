// Each lane runs until it meets an event that has not happened yet: a signal, packets, the last lane at a barrier, or
// the last rank to complete an earlier round. It is then stored under that event and queued again when the event
// happens, so a walk handles each step once, however long the chains are.

#include "plan/walk.hpp"

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace accord::plan {
namespace {

enum class EventKind : std::uint8_t { kSignal, kPackets, kBarrier, kRankCompleted, kAllCompleted };

// (kind, round, rank, other rank or 0, id or index).
using Event = std::tuple<EventKind, int, Rank, Rank, int>;

struct LaneState {
  Rank rank = 0;
  int lane = 0;
  int round = 0;
  std::size_t next = 0;
  bool begun = false;    // the round
  bool arrived = false;  // at the next barrier
};

class Walk {
 public:
  Walk(const Plan& plan, int rounds, RoundGate gate, StepVisitor& visitor)
      : plan_(plan), rounds_(rounds), gate_(gate), visitor_(visitor) {
    for (Rank rank = 0; rank < plan.size; ++rank) {
      const auto lanes = static_cast<int>(program(rank).lanes.size());
      for (int lane = 0; lane < lanes; ++lane) lanes_.push_back({.rank = rank, .lane = lane});
    }
  }

  Result<std::vector<StepPlace>> run() {
    std::deque<std::size_t> ready(lanes_.size());
    for (std::size_t i = 0; i < ready.size(); ++i) ready[i] = i;
    while (!ready.empty()) {
      const std::size_t index = ready.front();
      ready.pop_front();
      ACCORD_RETURN_IF_ERROR(advance(index));
      ready.insert(ready.end(), woken_.begin(), woken_.end());
      woken_.clear();
    }
    std::vector<StepPlace> stuck;
    for (const LaneState& lane : lanes_) {
      if (lane.round < rounds_ && lane.begun) stuck.push_back({lane.rank, lane.lane, static_cast<int>(lane.next)});
    }
    return stuck;
  }

 private:
  const Program& program(Rank rank) const { return plan_.programs[static_cast<std::size_t>(rank)]; }

  // The event that the step must wait for, if it has not happened yet.
  std::optional<Event> missing(const LaneState& lane, const Step& step) const {
    const auto absent = [&](const Event& event) { return !happened_.contains(event); };
    if (step.kind == StepKind::kWait) {
      const Event event{EventKind::kSignal, lane.round, step.peer, lane.rank, step.id};
      if (absent(event)) return event;
    }
    if (step.kind == StepKind::kLaneBarrier) {
      const Event event{EventKind::kBarrier, lane.round, lane.rank, 0, step.id};
      if (absent(event)) return event;
    }
    if (step.kind == StepKind::kCopy || step.kind == StepKind::kReduce) {
      for (const Chunk& source : step.sources) {
        const Event event{EventKind::kPackets, lane.round, lane.rank, 0, source.index};
        if (source.space == Space::kPackets && absent(event)) return event;
      }
    }
    return std::nullopt;
  }

  void happen(const Event& event) {
    happened_.insert(event);
    const auto waiting = waiting_.find(event);
    if (waiting == waiting_.end()) return;
    woken_.insert(woken_.end(), waiting->second.begin(), waiting->second.end());
    waiting_.erase(waiting);
  }

  void arrive(std::size_t index, const Step& step) {
    LaneState& lane = lanes_[index];
    if (lane.arrived) return;
    lane.arrived = true;
    visitor_.arrive(static_cast<int>(index), lane.round, {lane.rank, lane.lane, static_cast<int>(lane.next)}, step);
    const Event event{EventKind::kBarrier, lane.round, lane.rank, 0, step.id};
    if (++arrivals_[event] == program(lane.rank).lanes.size()) happen(event);
  }

  // A round of a rank begins when the previous one has ended in all of its lanes and the gate permits it.
  std::optional<Event> before_round(const LaneState& lane) const {
    const Event own{EventKind::kRankCompleted, lane.round - 1, lane.rank, 0, 0};
    if (lane.round >= 1 && !happened_.contains(own)) return own;
    const int freed = lane.round - static_cast<int>(kRoundDepth);
    const Event all{EventKind::kAllCompleted, freed, 0, 0, 0};
    if (gate_ == RoundGate::kUntilCompleted && freed >= 0 && !happened_.contains(all)) return all;
    return std::nullopt;
  }

  bool begin(std::size_t index) {
    LaneState& lane = lanes_[index];
    if (lane.begun) return true;
    if (const auto event = before_round(lane)) {
      waiting_[*event].push_back(index);
      return false;
    }
    lane.begun = true;
    visitor_.begin_round(static_cast<int>(index), lane.round);
    return true;
  }

  void complete(std::size_t index) {
    LaneState& lane = lanes_[index];
    visitor_.end_round(static_cast<int>(index), lane.round);
    const Event own{EventKind::kRankCompleted, lane.round, lane.rank, 0, 0};
    const Event all{EventKind::kAllCompleted, lane.round, 0, 0, 0};
    if (++arrivals_[own] == program(lane.rank).lanes.size()) happen(own);
    if (++arrivals_[all] == lanes_.size()) happen(all);
    lane = {.rank = lane.rank, .lane = lane.lane, .round = lane.round + 1};
  }

  Status advance(std::size_t index) {
    LaneState& lane = lanes_[index];
    const std::vector<Step>& steps = program(lane.rank).lanes[static_cast<std::size_t>(lane.lane)].steps;
    while (lane.round < rounds_) {
      if (!begin(index)) return {};
      for (; lane.next < steps.size(); ++lane.next) {
        const Step& step = steps[lane.next];
        if (step.kind == StepKind::kLaneBarrier) arrive(index, step);
        if (const auto event = missing(lane, step)) {
          waiting_[*event].push_back(index);
          return {};
        }
        const StepPlace place{lane.rank, lane.lane, static_cast<int>(lane.next)};
        ACCORD_RETURN_IF_ERROR(visitor_.step(static_cast<int>(index), lane.round, place, step));
        lane.arrived = false;
        if (step.kind == StepKind::kSignal) happen({EventKind::kSignal, lane.round, lane.rank, step.peer, step.id});
        if (step.kind == StepKind::kPutPackets) {
          happen({EventKind::kPackets, lane.round, step.peer, 0, step.destinations[0].index});
        }
      }
      complete(index);
    }
    return {};
  }

  const Plan& plan_;
  int rounds_;
  RoundGate gate_;
  StepVisitor& visitor_;
  std::vector<LaneState> lanes_;
  std::set<Event> happened_;
  std::map<Event, std::vector<std::size_t>> waiting_;
  std::map<Event, std::size_t> arrivals_;
  std::vector<std::size_t> woken_;
};

}  // namespace

std::vector<int> first_lanes(const Plan& plan) {
  std::vector<int> first = {0};
  for (const Program& program : plan.programs) first.push_back(first.back() + static_cast<int>(program.lanes.size()));
  return first;
}

Result<std::vector<StepPlace>> walk(const Plan& plan, int rounds, RoundGate gate, StepVisitor& visitor) {
  return Walk(plan, rounds, gate, visitor).run();
}

}  // namespace accord::plan
