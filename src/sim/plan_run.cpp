// Lanes run in the order of virtual time: an operation begins when its lane is the next event, so whatever others do
// before it is known. Three things are shared besides links between hosts (messages.hpp):
//
//   processor  one for each rank, which its lanes use in turn
//   core       of several ranks, if there are fewer cores than ranks: see cores.hpp
//   memory     of a host, as a link over which the bytes of its ranks that are in no cache flow, if the machine limits
//              it
//
// An event happens once a round. Its place is used again `depth` rounds later, as in the executor.
#include "sim/plan_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "base/rounding.hpp"
#include "sim/cores.hpp"
#include "sim/event_queue.hpp"
#include "sim/flows.hpp"
#include "sim/run_state.hpp"

namespace accord::sim {
namespace {

using namespace run_state;

constexpr double kShortWork = 1e-6;  // seconds below which work is not slowed down by others' use of the memory

class Run {
 public:
  Run(const Programs& programs, const Machine& machine, const topology::Topology& topology, const Network* network,
      Sharing sharing)
      : programs_(programs),
        host_(machine.host),
        topology_(topology),
        hosts_(topology.host_of(static_cast<Rank>(programs.programs.size()) - 1) + 1),
        has_memory_links_(machine.host.memory_bytes_per_second > 0),
        memory_(std::vector<double>(has_memory_links_ ? to_size(hosts_) : 0, machine.host.memory_bytes_per_second)),
        messages_(programs, topology, network, machine.network.nics, hosts_, sharing),
        ranks_(programs.programs.size()),
        cores_(machine, programs.programs.size(), count_lanes(programs)),
        all_rounds_(programs.rounds * programs.calls),
        slots_(std::min<std::uint64_t>(programs.depth, all_rounds_)) {
    arrivals_.resize(programs.events * slots_);
    rounds_.resize(2 * static_cast<std::size_t>(slots_) + 1);
    for (Rank rank = 0; rank < static_cast<Rank>(ranks_.size()); ++rank) {
      ranks_[to_size(rank)].first_lane = static_cast<std::uint32_t>(lanes_.size());
      for (const Lane& lane : program_of(rank)) lanes_.push_back({.rank = rank, .ops = &lane});
    }
    times_.ranks.resize(ranks_.size());
  }

  Result<PlanTimes> run() {
    for (Rank rank = 0; rank < static_cast<Rank>(ranks_.size()); ++rank) begin_round(rank, 0);
    while (true) {
      const double lane = ready_.empty() ? std::numeric_limits<double>::infinity() : ready_.top().time;
      const double work = memory_.next_event();
      const double message = messages_.next_event();
      now_ = std::min({lane, work, message});
      if (now_ == std::numeric_limits<double>::infinity()) break;
      if (now_ == lane) {
        const std::uint32_t id = ready_.top().what;
        ready_.pop();
        run_lane(id);
      } else if (now_ == work) {
        end_work(*memory_.advance());
      } else {
        messages_.advance(now_);
        take_deliveries();
      }
    }
    ACCORD_RETURN_IF_ERROR(check_ended());
    for (const RankTimes& rank : times_.ranks) times_.seconds = std::max(times_.seconds, rank.end);
    times_.link_bytes = messages_.carried();
    times_.simulated_ranks = static_cast<int>(ranks_.size());
    return std::move(times_);
  }

 private:
  static std::size_t count_lanes(const Programs& programs) {
    return std::accumulate(programs.programs.begin(), programs.programs.end(), std::size_t{0},
                           [](std::size_t sum, const Program& program) { return sum + program.size(); });
  }

  const Program& program_of(Rank rank) const { return programs_.programs[to_size(rank)]; }
  RankState& rank_state(Rank rank) { return ranks_[to_size(rank)]; }
  RankTimes& times_of(Rank rank) { return times_.ranks[to_size(rank)]; }

  // Rounds

  void begin_round(Rank rank, double time) {
    RankState& state = rank_state(rank);
    const Program& program = program_of(rank);
    if (programs_.waits_for_rounds && state.round >= programs_.depth) {
      RoundState& before = round_state(state.round - programs_.depth);
      if (before.completed < ranks_.size()) {
        before.waiting.push_back(rank);
        state.round_end = time;
        return;
      }
      const double begin = std::max(time, before.time + host_.times.seconds_per_hop) + seconds_of_gate(rank);
      times_of(rank).waiting += begin - time;
      time = begin;
    }
    if (state.round % programs_.rounds == 0) time += host_.call_seconds;
    state.lanes_left = program.size();
    for (std::uint32_t lane = 0; lane < program.size(); ++lane) {
      LaneState& one = lanes_[state.first_lane + lane];
      one.next = 0;
      one.time = time;
      cores_.go_on(rank, state.first_lane + lane);
      ready_.push(time, state.first_lane + lane);
    }
    if (program.empty()) times_of(rank).end = time;
  }

  // A rank reads a line of each other rank of its host to see which rounds they have completed. It often sees several.
  double seconds_of_gate(Rank rank) const {
    constexpr double kLine = 64;
    const auto others = static_cast<double>(topology_.ranks_of_host(topology_.host_of(rank)).size() - 1);
    return others * kLine * host_.times.exchanged.seconds_per_byte_of_step(kLine) / programs_.depth;
  }

  RoundState& round_state(std::uint64_t round) {
    RoundState& state = rounds_[static_cast<std::size_t>(round % rounds_.size())];
    if (state.round != round) {
      state.round = round;
      state.completed = 0;
      state.time = 0;
      state.waiting.clear();
    }
    return state;
  }

  void end_lane(const LaneState& lane) {
    RankState& state = rank_state(lane.rank);
    state.round_end = std::max(state.round_end, lane.time);
    if (--state.lanes_left > 0) return;
    RoundState& completed = round_state(state.round);
    ++completed.completed;
    completed.time = std::max(completed.time, state.round_end);
    if (++state.round < all_rounds_) {
      begin_round(lane.rank, state.round_end);
    } else {
      times_of(lane.rank).end = state.round_end;
    }
    if (completed.completed < ranks_.size()) return;
    const std::vector<Rank> waiting = std::move(completed.waiting);
    completed.waiting.clear();
    for (const Rank rank : waiting) begin_round(rank, rank_state(rank).round_end);
  }

  // Operations

  // Runs operations of the lane until one of them waits, or begins later than now.
  void run_lane(std::uint32_t id) {
    LaneState& lane = lanes_[id];
    if (!cores_.begin(lane.rank, id, now_)) return grant_cores();
    while (lane.next < lane.ops->size()) {
      const Op& op = (*lane.ops)[lane.next];
      RankState& state = rank_state(lane.rank);
      if (op.kind == OpKind::kWait && !lane.waited && !wait(id, op)) return stop(id);
      const double begin = std::max(lane.time, state.processor_free);
      if (begin > now_) {
        lane.time = begin;
        ready_.push(begin, id);
        return;
      }
      ++times_.operations;
      ++lane.next;
      lane.waited = false;
      const std::uint64_t elements = elements_of(op, programs_.slice, state.round % programs_.rounds);
      const double seconds = op.seconds + op.seconds_per_element * static_cast<double>(elements);
      const double bytes = op.bytes_per_element * static_cast<double>(elements);
      if (op.kind == OpKind::kWork && has_memory_links_ && seconds > kShortWork && bytes > 0) {
        start_work(id, bytes, seconds);
        return;
      }
      use_processor(lane, seconds);
      switch (op.kind) {
        case OpKind::kWork:
        case OpKind::kWait: break;
        case OpKind::kNotify:
          if (op.is_remote) {
            send(lane, op, 0);
          } else {
            arrive(op.event, state.round, lane.time + (op.peer == lane.rank ? 0 : host_.times.seconds_per_hop));
          }
          break;
        case OpKind::kSend: send(lane, op, bytes); break;
        case OpKind::kBarrier:
          if (!pass_barrier(id, op.event)) return stop(id);
          break;
      }
    }
    end_lane(lane);
    cores_.stop(lane.rank, id);
    release_core(lane.rank);
  }

  // The lane waits.
  void stop(std::uint32_t id) {
    cores_.stop(lanes_[id].rank, id);
    release_core(lanes_[id].rank);
  }

  void release_core(Rank rank) {
    cores_.release_if_idle(rank, std::max(now_, rank_state(rank).processor_free));
    grant_cores();
  }

  void grant_cores() {
    for (const auto& [lane, time] : cores_.granted()) {
      lanes_[lane].time = std::max(lanes_[lane].time, time);
      ready_.push(lanes_[lane].time, lane);
    }
  }

  void use_processor(LaneState& lane, double seconds) {
    lane.time += seconds;
    rank_state(lane.rank).processor_free = lane.time;
    times_of(lane.rank).working += seconds;
  }

  // The time that the work takes alone is its least; its bytes share the memory of the host.
  void start_work(std::uint32_t id, double bytes, double seconds) {
    LaneState& lane = lanes_[id];
    const std::int32_t memory = topology_.host_of(lane.rank);
    const FlowId flow = memory_.start_limited(now_, bytes, std::span<const std::int32_t>(&memory, 1), bytes / seconds);
    if (flow >= working_.size()) working_.resize(flow + 1);
    working_[flow] = id;
    rank_state(lane.rank).processor_free = std::numeric_limits<double>::infinity();
  }

  void end_work(FlowId flow) {
    const std::uint32_t id = working_[flow];
    LaneState& lane = lanes_[id];
    times_of(lane.rank).working += now_ - lane.time;
    lane.time = now_;
    rank_state(lane.rank).processor_free = now_;
    ready_.push(now_, id);
  }

  bool pass_barrier(std::uint32_t id, std::uint32_t barrier) {
    std::vector<std::uint32_t>& arrived = rank_state(lanes_[id].rank).barriers[barrier];
    arrived.push_back(id);
    if (arrived.size() < program_of(lanes_[id].rank).size()) return false;
    for (const std::uint32_t other : arrived) {
      if (other == id) continue;
      lanes_[other].time = lanes_[id].time;
      ready_.push(lanes_[id].time, other);
    }
    arrived.clear();
    return true;
  }

  // Events

  Arrival& arrival(std::uint32_t event, std::uint64_t round) { return arrivals_[event * slots_ + round % slots_]; }

  // Returns true if the event has happened; then the lane's time is that at which it knows.
  bool wait(std::uint32_t id, const Op& op) {
    LaneState& lane = lanes_[id];
    const std::uint64_t round = rank_state(lane.rank).round;
    Arrival& event = arrival(op.event, round);
    if (event.round != round) {
      event.lane = id;
      event.lane_round = round;
      return false;
    }
    hear(lane, event.time);
    return true;
  }

  void hear(LaneState& lane, double time) {
    lane.waited = true;
    if (time <= lane.time) return;
    times_of(lane.rank).waiting += time - lane.time;
    lane.time = time;
  }

  void arrive(std::uint32_t event, std::uint64_t round, double time) {
    Arrival& arrived = arrival(event, round);
    arrived.round = round;
    arrived.time = time;
    if (arrived.lane == kNoLane || arrived.lane_round != round) return;
    const std::uint32_t id = arrived.lane;
    arrived.lane = kNoLane;
    hear(lanes_[id], time);
    ready_.push(lanes_[id].time, id);
  }

  // Messages

  void send(const LaneState& lane, const Op& op, double bytes) {
    messages_.send(now_, op.channel, {bytes, now_, lane.time, op.event, rank_state(lane.rank).round});
    take_deliveries();
  }

  void take_deliveries() {
    for (const Delivery& one : messages_.delivered()) arrive(one.event, one.round, one.time);
    messages_.delivered().clear();
  }

  Status check_ended() const {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      if (!programs_.programs[rank].empty() && ranks_[rank].round < all_rounds_)
        return {StatusCode::kInternal, fmt::format("rank {} waits forever in round {}", rank, ranks_[rank].round)};
    return {};
  }

  const Programs& programs_;
  const HostModel& host_;
  const topology::Topology& topology_;
  int hosts_;  // of the ranks
  bool has_memory_links_;
  double now_ = 0;
  Flows memory_;
  Messages messages_;
  EventQueue<std::uint32_t> ready_;  // lanes
  std::vector<LaneState> lanes_;
  std::vector<RankState> ranks_;
  Cores cores_;
  std::uint64_t all_rounds_;  // of all calls
  std::uint64_t slots_;
  std::vector<Arrival> arrivals_;
  std::vector<RoundState> rounds_;      // those of the slowest rank's gate to those of the fastest rank
  std::vector<std::uint32_t> working_;  // lanes, by flow over the memory
  PlanTimes times_;
};

}  // namespace

Result<PlanTimes> run_programs(const Programs& programs, const Machine& machine, const topology::Topology& topology,
                               Sharing sharing) {
  std::optional<Network> network;
  if (topology.host_count() > 1) network.emplace(machine.network, topology.host_count());
  const Network* const links = network ? &*network : nullptr;
  ACCORD_ASSIGN_OR_RETURN(PlanTimes times, Run(programs, machine, topology, links, sharing).run());
  const std::size_t simulated = times.ranks.size();
  const int hosts = topology.host_of(static_cast<Rank>(simulated) - 1) + 1;
  times.ranks.resize(to_size(programs.ranks));
  for (std::size_t rank = simulated; rank < times.ranks.size(); ++rank)
    times.ranks[rank] = times.ranks[rank % simulated];
  if (links == nullptr) return times;
  times.links = links->links();
  for (std::size_t link = 0; link < times.links.size(); ++link)
    times.link_bytes[link] = times.link_bytes[to_size(links->representative(static_cast<LinkId>(link), hosts))];
  return times;
}

}  // namespace accord::sim
