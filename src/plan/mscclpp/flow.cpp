// All lanes run in turn until each has ended or none can proceed. Semaphores and channels count, so the kth wait
// takes the kth signal. In place, input and output are the same cells: they are named as output and hold the input at
// first. If the plan has races, the order chosen here is one of several. The verifier checks the result, in which
// every awaited value is awaited by name.

#include "plan/mscclpp/flow.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

namespace accord::plan::mscclpp {
namespace {

constexpr std::size_t kMaxSteps = std::size_t{1} << 22;

class Run {
 public:
  Run(const ExecutionPlan& plan, SwitchOps ops) : plan_(plan), switch_ops_(ops), next_(plan.gpus.size()) {
    for (std::size_t rank = 0; rank < plan.gpus.size(); ++rank) {
      next_[rank].resize(plan.gpus[rank].lanes.size(), 0);
      for (std::size_t id = 0; id < plan.gpus[rank].semaphores.size(); ++id)
        credits_[{static_cast<Rank>(rank), static_cast<int>(id)}] = plan.gpus[rank].semaphores[id];
      for (int chunk = 0; chunk < plan.input_chunks; ++chunk) {
        const Cell cell = named({static_cast<Rank>(rank), Memory::kInput, chunk});
        latest_[cell] = add_value({.cell = cell, .input_chunk = chunk, .writer = cell.rank, .first_rank = cell.rank});
      }
    }
  }

  Result<Flow> run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (Rank rank = 0; rank < plan_.size(); ++rank) {
        for (std::size_t lane = 0; lane < next_[at(rank)].size(); ++lane) {
          ACCORD_ASSIGN_OR_RETURN(const bool went, advance(rank, static_cast<int>(lane)));
          moved = moved || went;
        }
      }
    }
    for (Rank rank = 0; rank < plan_.size(); ++rank) {
      for (std::size_t lane = 0; lane < next_[at(rank)].size(); ++lane) {
        const std::vector<Op>& ops = plan_.gpus[at(rank)].lanes[lane];
        if (next_[at(rank)][lane] < ops.size()) return stuck(ops[next_[at(rank)][lane]]);
      }
    }
    return std::move(flow_);
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  static Status corrupt(const Op& op, std::string_view problem) {
    return {StatusCode::kCorrupt, fmt::format("MSCCL++ plan: {} ({}): {}", op.place, op.kind->name, problem)};
  }

  // The cell's name when input and output are the same memory.
  Cell named(const Cell& cell) const {
    if (!plan_.in_place || cell.memory != Memory::kInput) return cell;
    const int in = plan_.input_chunks, out = plan_.output_chunks;
    if (in == out) return {cell.rank, Memory::kOutput, cell.index};
    if (in < out) return {cell.rank, Memory::kOutput, cell.rank * in + cell.index};
    const int own = cell.index - cell.rank * out;
    return own >= 0 && own < out ? Cell{cell.rank, Memory::kOutput, own} : cell;
  }

  int add_value(Value value) {
    flow_.values.push_back(std::move(value));
    return static_cast<int>(flow_.values.size()) - 1;
  }

  // Runs a lane as far as possible. Returns true if it made progress.
  Result<bool> advance(Rank rank, int lane) {
    const std::vector<Op>& ops = plan_.gpus[at(rank)].lanes[at(lane)];
    std::size_t& next = next_[at(rank)][at(lane)];
    const std::size_t before = next;
    while (next < ops.size()) {
      ACCORD_ASSIGN_OR_RETURN(const bool done, run_op(ops[next], rank, lane));
      if (!done) break;
      ++next;
    }
    return next > before;
  }

  // Returns false if the op has to wait.
  Result<bool> run_op(const Op& op, Rank rank, int lane) {
    ACCORD_RETURN_IF_ERROR(check_length(op));
    switch (op.kind->action) {
      case Action::kNothing: return true;
      case Action::kSignal: signal_channels(op, rank, lane); return true;
      case Action::kWait: return wait_channels(op, rank, lane);
      case Action::kRelease:
        for (const int id : op.semaphores) released_[{rank, id}].push_back(signal(op, rank, lane, rank));
        return true;
      case Action::kAcquire: return acquire(op, rank, lane);
      case Action::kBarrier: return pass_barrier(op, rank, lane);
      case Action::kMove:
      case Action::kReduce: break;
    }
    if (must_wait_for_packets(op)) return false;
    ACCORD_RETURN_IF_ERROR(goes_by_switch(op)                 ? by_switch(op, rank, lane)
                           : op.kind->action == Action::kMove ? move(op, rank, lane)
                                                              : reduce(op, rank, lane));
    if (op.kind->signals) signal_channels(op, rank, lane);
    return true;
  }

  int signal(const Op& op, Rank rank, int lane, Rank to) {
    flow_.events.push_back({rank, to});
    const int event = static_cast<int>(flow_.events.size()) - 1;
    flow_.steps.push_back(
        {.kind = FlowStep::Kind::kSignal, .rank = rank, .lane = lane, .event = event, .place = op.place});
    return event;
  }
  void wait(const Op& op, Rank rank, int lane, int event) {
    flow_.events[at(event)].awaited = true;
    flow_.steps.push_back(
        {.kind = FlowStep::Kind::kWait, .rank = rank, .lane = lane, .event = event, .place = op.place});
  }

  void signal_channels(const Op& op, Rank rank, int lane) {
    for (const Channel& channel : op.channels)
      sent_[{rank, channel.peer, channel.type, channel.nth}].push_back(signal(op, rank, lane, channel.peer));
  }

  Result<bool> wait_channels(const Op& op, Rank rank, int lane) {
    const auto queue_of = [&](const Channel& channel) -> std::deque<int>& {
      return sent_[{channel.peer, rank, channel.type, channel.nth}];
    };
    if (std::ranges::any_of(op.channels, [&](const Channel& channel) { return queue_of(channel).empty(); }))
      return false;
    for (const Channel& channel : op.channels) {
      if (queue_of(channel).empty()) return corrupt(op, "names a channel twice");
      wait(op, rank, lane, queue_of(channel).front());
      queue_of(channel).pop_front();
    }
    return true;
  }

  Result<bool> acquire(const Op& op, Rank rank, int lane) {
    const auto free = [&](int id) { return credits_[{rank, id}] > 0 || !released_[{rank, id}].empty(); };
    if (!std::ranges::all_of(op.semaphores, free)) return false;
    for (const int id : op.semaphores) {
      int& credits = credits_[{rank, id}];
      std::deque<int>& released = released_[{rank, id}];
      if (credits > 0) {
        --credits;
      } else if (released.empty()) {
        return corrupt(op, "names a semaphore twice");
      } else {
        wait(op, rank, lane, released.front());
        released.pop_front();
      }
    }
    return true;
  }

  // The last lane to arrive releases all; the others find the meeting held when they check again.
  bool pass_barrier(const Op& op, Rank rank, int lane) {
    Gathering& gathering = gatherings_[{rank, op.barrier}];
    const auto passed = std::ranges::find(gathering.leaving, lane);
    if (passed != gathering.leaving.end()) {
      gathering.leaving.erase(passed);
      return true;
    }
    if (std::ranges::find(gathering.arrived, lane) != gathering.arrived.end()) return false;
    gathering.arrived.push_back(lane);
    if (static_cast<int>(gathering.arrived.size()) < op.barrier_lanes) return false;
    flow_.barriers.push_back({rank, gathering.arrived});
    for (const int member : gathering.arrived) {
      flow_.steps.push_back({.kind = FlowStep::Kind::kBarrier,
                             .rank = rank,
                             .lane = member,
                             .event = static_cast<int>(flow_.barriers.size()) - 1,
                             .place = op.place});
      if (member != lane) gathering.leaving.push_back(member);
    }
    gathering.arrived.clear();
    return true;
  }

  Status check_length(const Op& op) const {
    if (flow_.steps.size() <= kMaxSteps && flow_.values.size() <= 2 * kMaxSteps) return {};
    return corrupt(op, fmt::format("more than {} steps of single chunks", kMaxSteps));
  }

  Cell cell_of(const Span& span, int offset) const {
    Cell cell = span.first;
    cell.index += offset;
    return named(cell);
  }
  // For a switch channel, the cells of all its ranks, that of `first` before all others.
  std::vector<Cell> cells_of(const Span& span, int offset, Rank first) const {
    if (span.ranks.empty()) return {cell_of(span, offset)};
    std::vector<Cell> cells;
    for (const Rank rank : span.ranks) {
      Span of_one = span;
      of_one.first.rank = rank;
      cells.insert(rank == first ? cells.begin() : cells.end(), cell_of(of_one, offset));
    }
    return cells;
  }

  bool reads_packets(const Op& op, std::size_t source) const {
    return op.kind->sources_in_packets && (op.kind->action == Action::kMove || source > 0);
  }

  bool must_wait_for_packets(const Op& op) const {
    for (std::size_t s = 0; s < op.sources.size(); ++s) {
      for (int i = 0; reads_packets(op, s) && i < op.sources[s].size; ++i) {
        const auto found = latest_.find(cell_of(op.sources[s], i));
        if (found == latest_.end() || !flow_.values[at(found->second)].in_packets) return true;
      }
    }
    return false;
  }

  Result<int> read(const Op& op, const Cell& cell) {
    const auto found = latest_.find(cell);
    if (found != latest_.end()) {
      flow_.values[at(found->second)].readers.push_back(flow_.steps.size());
      return found->second;
    }
    return corrupt(op, fmt::format("reads {}[{}] of rank {}, where nothing has been written", to_string(cell.memory),
                                   cell.index, cell.rank));
  }

  int write_value(const FlowStep& step, Value value) {
    const auto before = latest_.find(value.cell);
    if (before != latest_.end()) flow_.values[at(before->second)].is_last = false;
    value.writer = step.rank;
    value.writer_lane = step.lane;
    value.place = step.place;
    const Cell cell = value.cell;
    return latest_[cell] = add_value(std::move(value));
  }
  void write(FlowStep step, Value value) {
    step.destination = write_value(step, std::move(value));
    flow_.steps.push_back(std::move(step));
  }

  bool goes_by_switch(const Op& op) const {
    const auto is_of_all = [&](const Span& to) { return static_cast<int>(to.ranks.size()) == plan_.size(); };
    return switch_ops_ == SwitchOps::kMulticast && op.kind->to_switch && !op.kind->into_packets &&
           std::ranges::all_of(op.destinations, is_of_all);
  }
  Status by_switch(const Op& op, Rank rank, int lane) {
    for (std::size_t d = 0; d < op.destinations.size(); ++d) {
      for (int i = 0; i < op.destinations[d].size; ++i) {
        ACCORD_RETURN_IF_ERROR(check_length(op));
        FlowStep step{.kind = FlowStep::Kind::kSwitch, .rank = rank, .lane = lane, .place = op.place};
        for (const Cell& cell : cells_of(op.sources[op.sources.size() == 1 ? 0 : d], i, 0)) {
          ACCORD_ASSIGN_OR_RETURN(const int value, read(op, cell));
          step.sources.push_back(value);
        }
        const Rank first = op.kind->from_switch ? 0 : flow_.values[at(step.sources[0])].first_rank;
        for (const Cell& cell : cells_of(op.destinations[d], i, 0))
          step.everywhere.push_back(write_value(step, {.cell = cell, .first_rank = first}));
        step.destination = step.everywhere[at(rank)];
        flow_.steps.push_back(std::move(step));
      }
    }
    return {};
  }

  Status copy(const Op& op, const FlowStep& step, const Cell& from, const Cell& to) {
    ACCORD_ASSIGN_OR_RETURN(const int source, read(op, from));
    FlowStep copying = step;
    copying.kind = FlowStep::Kind::kCopy;
    copying.sources = {source};
    write(std::move(copying), {.cell = to,
                               .copy_of = source,
                               .in_packets = op.kind->into_packets,
                               .first_rank = flow_.values[at(source)].first_rank});
    return {};
  }

  Status move(const Op& op, Rank rank, int lane) {
    const FlowStep step{.rank = rank, .lane = lane, .place = op.place};
    for (std::size_t d = 0; d < op.destinations.size(); ++d) {
      const Span& from = op.sources[op.sources.size() == 1 ? 0 : d];
      for (int i = 0; i < op.destinations[d].size; ++i) {
        ACCORD_RETURN_IF_ERROR(check_length(op));
        const Cell source = cell_of(from, i);
        for (const Cell& cell : cells_of(op.destinations[d], i, rank))
          if (cell != source) ACCORD_RETURN_IF_ERROR(copy(op, step, source, cell));
      }
    }
    return {};
  }

  // The sum is stored in the first destination and copied from there.
  Status reduce(const Op& op, Rank rank, int lane) {
    const FlowStep step{.rank = rank, .lane = lane, .place = op.place};
    for (int i = 0; i < op.sources[0].size; ++i) {
      ACCORD_RETURN_IF_ERROR(check_length(op));
      FlowStep adding = step;
      adding.kind = FlowStep::Kind::kReduce;
      for (const Span& source : op.sources) {
        for (const Cell& cell : cells_of(source, i, rank)) {
          ACCORD_ASSIGN_OR_RETURN(const int value, read(op, cell));
          adding.sources.push_back(value);
        }
      }
      // In rank order, so that sums follow the canonical tree if possible.
      std::ranges::stable_sort(adding.sources, {}, [&](int value) { return flow_.values[at(value)].first_rank; });
      std::vector<Cell> places;
      for (const Span& destination : op.destinations)
        for (const Cell& cell : cells_of(destination, i, rank)) places.push_back(cell);
      const Rank first = flow_.values[at(adding.sources[0])].first_rank;
      write(std::move(adding), {.cell = places[0], .first_rank = first});
      for (std::size_t d = 1; d < places.size(); ++d) ACCORD_RETURN_IF_ERROR(copy(op, step, places[0], places[d]));
    }
    return {};
  }

  Status stuck(const Op& op) const {
    if (op.kind->action == Action::kMove || op.kind->action == Action::kReduce)
      return corrupt(op, "waits for ever: nobody puts the packets that it reads");
    return corrupt(op, "waits for ever (deadlock): what it waits for happens later or not at all");
  }

  struct Gathering {
    std::vector<int> arrived;
    std::vector<int> leaving;
  };

  const ExecutionPlan& plan_;
  const SwitchOps switch_ops_;
  Flow flow_;
  std::vector<std::vector<std::size_t>> next_;  // op, by rank and lane
  std::map<Cell, int> latest_;
  std::map<std::tuple<Rank, Rank, std::string, int>, std::deque<int>> sent_;  // from, to, type, nth
  std::map<std::pair<Rank, int>, std::deque<int>> released_;
  std::map<std::pair<Rank, int>, int> credits_;
  std::map<std::pair<Rank, int>, Gathering> gatherings_;
};

}  // namespace

Result<Flow> flow_of(const ExecutionPlan& plan, SwitchOps ops) { return Run(plan, ops).run(); }

}  // namespace accord::plan::mscclpp
