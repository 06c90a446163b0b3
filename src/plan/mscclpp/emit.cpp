// Emits the steps of the flow in their order, each in its own lane. A copy of a sum in partials needs no step. A
// value in packets is sent as our packets if possible; otherwise its writer signals its readers. The builder needs
// the numbers of chunks first, so the steps are recorded and passed to it at the end.

#include "plan/mscclpp/emit.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/rounding.hpp"
#include "plan/mscclpp/placement.hpp"

namespace accord::plan::mscclpp {
namespace {

class Emission {
 public:
  Emission(const ExecutionPlan& plan, const Flow& flow, const EmitOptions& options)
      : plan_(plan), flow_(flow), options_(options), placement_(plan, flow, options), barriers_(plan.gpus.size(), 0) {}

  Result<Plan> run() {
    ACCORD_RETURN_IF_ERROR(placement_.check());
    for (Rank rank = 0; rank < plan_.size(); ++rank) copy_before(rank);
    for (const FlowStep& step : flow_.steps) emit(step);
    for (Rank rank = 0; rank < plan_.size(); ++rank) copy_after(rank);

    PlanBuilder builder(plan_.name, {.collective = plan_.collective}, plan_.size(), placement_.shape());
    for (Rank rank = 0; rank < plan_.size(); ++rank)
      for (std::size_t lane = 0; lane < plan_.gpus[to_size(rank)].lanes.size(); ++lane)
        (void)builder.on(rank).lane(static_cast<int>(lane));
    for (const auto& add : pending_steps_) add(builder);
    builder.set_order(options_.order);
    builder.set_pacing(options_.pacing);
    return std::move(builder).build();
  }

 private:
  // A step has at most two destinations.
  void copy(Rank rank, int lane, Chunk from, const std::vector<Chunk>& to) {
    for (std::size_t i = 0; i < to.size(); i += 2) {
      const std::vector<Chunk> two(to.begin() + static_cast<std::ptrdiff_t>(i),
                                   to.begin() + static_cast<std::ptrdiff_t>(std::min(i + 2, to.size())));
      pending_steps_.push_back([=](PlanBuilder& plan) { plan.on(rank).lane(lane).copy(from, two); });
    }
  }
  void reduce(Rank rank, int lane, const std::vector<Chunk>& from, const std::vector<Chunk>& to) {
    const auto others = to.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(2, to.size()));
    pending_steps_.push_back([=, two = std::vector<Chunk>(to.begin(), others)](PlanBuilder& plan) {
      plan.on(rank).lane(lane).reduce(from, two);
    });
    if (others != to.end()) copy(rank, lane, to[0], {others, to.end()});
  }
  void signal(Rank from, int lane, Rank to, int id) {
    pending_steps_.push_back([=](PlanBuilder& plan) { plan.on(from).lane(lane).signal(to, id); });
  }
  void wait(Rank rank, int lane, Rank from, int id) {
    pending_steps_.push_back([=](PlanBuilder& plan) { plan.on(rank).lane(lane).wait(from, id); });
  }
  void lane_barrier(Rank rank, int lane, int id) {
    pending_steps_.push_back([=](PlanBuilder& plan) { plan.on(rank).lane(lane).lane_barrier(id); });
  }
  int new_id(Rank from, Rank to) { return ids_[{from, to}]++; }

  const Value& at(int value) const { return flow_.values[to_size(value)]; }
  int lanes_of(Rank rank) const { return static_cast<int>(plan_.gpus[to_size(rank)].lanes.size()); }

  void all_lanes_join(Rank rank) {
    if (lanes_of(rank) == 1) return;
    const int id = barriers_[to_size(rank)]++;
    for (int lane = 0; lane < lanes_of(rank); ++lane) lane_barrier(rank, lane, id);
  }

  void copy_before(Rank rank) {
    bool any = false;
    for (std::size_t i = 0; i < flow_.values.size(); ++i) {
      const int value = static_cast<int>(i);
      if (at(value).cell.rank != rank) continue;
      if (const auto before = placement_.copy_before(value)) {
        copy(rank, 0, before->first, before->second);
        any = true;
      }
    }
    if (any) all_lanes_join(rank);
  }

  void copy_after(Rank rank) {
    bool any = false;
    for (std::size_t i = 0; i < flow_.values.size(); ++i) {
      const int value = static_cast<int>(i);
      if (at(value).cell.rank != rank) continue;
      if (const auto after = placement_.copy_after(value)) {
        if (!std::exchange(any, true)) all_lanes_join(rank);
        copy(rank, 0, after->first, after->second);
      }
    }
  }

  void emit(const FlowStep& step) {
    switch (step.kind) {
      case FlowStep::Kind::kSignal:
      case FlowStep::Kind::kWait: emit_event(step); break;
      case FlowStep::Kind::kBarrier: emit_barrier(step); break;
      case FlowStep::Kind::kCopy: emit_copy(step); break;
      case FlowStep::Kind::kReduce: emit_reduce(step); break;
      case FlowStep::Kind::kSwitch: emit_switch(step); break;
    }
  }

  void emit_event(const FlowStep& step) {
    const Event& event = flow_.events[to_size(step.event)];
    if (!event.awaited) return;
    const auto [id, is_new] = event_ids_.try_emplace(step.event, 0);
    if (is_new) id->second = new_id(event.from, event.to);
    if (step.kind == FlowStep::Kind::kSignal) {
      signal(step.rank, step.lane, event.to, id->second);
    } else {
      wait(step.rank, step.lane, event.from, id->second);
    }
  }

  // If all lanes of a rank meet, they use a barrier; if only some do, the last to arrive waits for the others and
  // releases them.
  void emit_barrier(const FlowStep& step) {
    const LaneBarrier& barrier = flow_.barriers[to_size(step.event)];
    const bool of_all = static_cast<int>(barrier.lanes.size()) == lanes_of(step.rank);
    if (barrier.lanes.size() == 1) return;
    const auto [first, is_new] = barrier_ids_.try_emplace(step.event, 0);
    if (is_new) {
      first->second = of_all ? barriers_[to_size(step.rank)]++ : new_id(step.rank, step.rank);
      for (std::size_t i = 1; !of_all && i < barrier.lanes.size(); ++i) (void)new_id(step.rank, step.rank);
    }
    if (of_all) {
      lane_barrier(step.rank, step.lane, first->second);
      return;
    }
    // The first id releases all lanes; the others report that their lane has arrived.
    const int others = static_cast<int>(barrier.lanes.size()) - 1;
    if (step.lane == barrier.lanes.back()) {
      for (int i = 0; i < others; ++i) wait(step.rank, step.lane, step.rank, first->second + 1 + i);
      signal(step.rank, step.lane, step.rank, first->second);
      return;
    }
    int mine = 0;
    while (barrier.lanes[to_size(mine)] != step.lane) ++mine;
    signal(step.rank, step.lane, step.rank, first->second + 1 + mine);
    wait(step.rank, step.lane, step.rank, first->second);
  }

  // Waits for a value that arrives by an event, and copies packets that cannot be read in place.
  Chunk read(int value, const FlowStep& step) {
    const Arrival arrival = placement_.arrival(value);
    if (arrival == Arrival::kEvent) await(value, step);
    if (arrival == Arrival::kPackets) {
      if (placement_.is_read_from_packets(value)) return placement_.packets(value);
      if (unpacked_.insert(value).second)
        copy(step.rank, step.lane, placement_.packets(value), placement_.destinations(value));
    }
    return placement_.place(value, step.rank);
  }

  void await(int value, const FlowStep& step) {
    const Value& it = at(value);
    if ((it.writer == step.rank && it.writer_lane == step.lane) ||
        !awaited_.insert({value, step.rank, step.lane}).second)
      return;
    wait(step.rank, step.lane, it.writer, arrival_ids_.at(value));
  }

  // The writer's part of await().
  void notify_readers(int value, const FlowStep& step) {
    if (placement_.arrival(value) != Arrival::kEvent) return;
    for (const std::size_t reader : at(value).readers) {
      const FlowStep& reading = flow_.steps[reader];
      if (reading.rank == step.rank && reading.lane == step.lane) continue;
      const int id = new_id(step.rank, reading.rank);
      arrival_ids_[value] = id;
      signal(step.rank, step.lane, reading.rank, id);
      return;
    }
  }

  void emit_copy(const FlowStep& step) {
    const int value = step.destination;
    if (placement_.arrival(value) == Arrival::kPackets && at(value).readers.empty()) return;
    const Chunk from = read(step.sources[0], step);
    if (placement_.arrival(value) == Arrival::kPackets) {
      const Chunk to = placement_.packets(value);
      pending_steps_.push_back([=, rank = step.rank, lane = step.lane](PlanBuilder& plan) {
        plan.on(rank).lane(lane).put_packets(from, to);
      });
      return;
    }
    if (!placement_.is_alias(value)) copy(step.rank, step.lane, from, placement_.destinations(value));
    notify_readers(value, step);
  }

  void emit_reduce(const FlowStep& step) {
    std::vector<Chunk> sources;
    for (const int source : step.sources) sources.push_back(read(source, step));
    reduce(step.rank, step.lane, sources, placement_.destinations(step.destination));
    notify_readers(step.destination, step);
  }

  void emit_switch(const FlowStep& step) {
    const std::vector<Chunk> to = placement_.destinations(step.destination);
    if (step.sources.size() == 1)
      copy(step.rank, step.lane, read(step.sources[0], step), to);
    else
      reduce(step.rank, step.lane, {multicast(kEveryRank, placement_.multicast_of(step.sources[0]))}, to);
  }

  const ExecutionPlan& plan_;
  const Flow& flow_;
  EmitOptions options_;
  Placement placement_;
  std::vector<std::function<void(PlanBuilder&)>> pending_steps_;
  std::vector<int> barriers_;                     // used, by rank
  std::map<std::pair<Rank, Rank>, int> ids_;      // signals used
  std::map<int, int> event_ids_;                  // event to signal
  std::map<int, int> barrier_ids_;                // barrier to its id or first signal
  std::map<int, int> arrival_ids_;                // value to signal
  std::set<int> unpacked_;                        // values
  std::set<std::tuple<int, Rank, int>> awaited_;  // value, rank, lane
};

}  // namespace

Result<Plan> emit(const ExecutionPlan& plan, const Flow& flow, const EmitOptions& options) {
  return Emission(plan, flow, options).run();
}

}  // namespace accord::plan::mscclpp
