// Lanes run in the order of virtual time: an operation begins when its lane is the next event, so whatever others do
// before it is known. Three things are shared:
//
//   processor  one for each rank, which its lanes use in turn
//   memory     of a host, as a link over which the bytes of its ranks flow, if the machine limits it
//   channel    from a rank to a rank of another host: data and events arrive in the order in which they were sent, and
//              the data of one channel flow one after the other, over the links of its route
//
// An event happens once a round. Its place is used again `depth` rounds later, as in the executor.
#include "sim/plan_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <unordered_map>

#include "base/rounding.hpp"
#include "sim/event_queue.hpp"
#include "sim/flows.hpp"

namespace accord::sim {
namespace {

constexpr double kShortWork = 1e-6;  // seconds below which work is not slowed down by others' use of the memory

class Run {
 public:
  Run(const std::vector<Program>& programs, std::uint32_t events, const Machine& machine,
      const topology::Topology& topology, const Network* network)
      : programs_(programs),
        host_(machine.host),
        model_(machine.network),
        topology_(topology),
        network_(network),
        has_memory_links_(machine.host.memory_bytes_per_second > 0),
        flows_(capacities()),
        ranks_(programs.size()) {
    std::uint64_t rounds = 1;
    for (const Program& program : programs) {
      rounds = std::max(rounds, program.rounds);
      slots_ = std::max<std::uint64_t>(slots_, program.depth);
    }
    slots_ = std::min(slots_, rounds);
    arrivals_.resize(events * slots_);
    rounds_.resize(2 * static_cast<std::size_t>(slots_) + 1);
    for (Rank rank = 0; rank < static_cast<Rank>(programs.size()); ++rank) {
      ranks_[rank].first_lane = static_cast<std::uint32_t>(lanes_.size());
      for (std::size_t lane = 0; lane < program_of(rank).lanes.size(); ++lane)
        lanes_.push_back({.rank = rank, .ops = &program_of(rank).lanes[lane]});
    }
    times_.ranks.resize(programs.size());
  }

  Result<PlanTimes> run() {
    for (Rank rank = 0; rank < static_cast<Rank>(ranks_.size()); ++rank) begin_round(rank, host_.call_seconds);
    while (true) {
      const double flow_end = flows_.next_end();
      if (!ready_.empty() && ready_.top().time <= flow_end) {
        now_ = ready_.top().time;
        const std::uint32_t lane = ready_.top().what;
        ready_.pop();
        run_lane(lane);
      } else if (flow_end < std::numeric_limits<double>::infinity()) {
        now_ = flow_end;
        end_flow(flows_.end_next());
      } else {
        break;
      }
    }
    ACCORD_RETURN_IF_ERROR(check_ended());
    for (const RankTimes& rank : times_.ranks) times_.seconds = std::max(times_.seconds, rank.end);
    const std::size_t links = network_ == nullptr ? 0 : network_->links().size();
    times_.link_bytes.assign(flows_.carried().begin(), flows_.carried().begin() + static_cast<std::ptrdiff_t>(links));
    return std::move(times_);
  }

 private:
  static constexpr std::uint32_t kNoLane = 0xffffffff;
  static constexpr std::uint64_t kNoRound = ~std::uint64_t{0};

  struct LaneState {
    Rank rank = 0;
    const std::vector<Op>* ops = nullptr;
    std::size_t next = 0;  // operation
    double time = 0;
    bool waited = false;  // for the event of the next operation
  };
  struct RankState {
    std::uint32_t first_lane = 0;
    std::size_t lanes_left = 0;  // of the round
    std::uint64_t round = 0;
    double round_end = 0;
    double processor_free = 0;
    std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> barriers;  // lanes that have arrived
  };
  struct Arrival {
    std::uint64_t round = kNoRound;
    double time = 0;
    std::uint32_t lane = kNoLane;  // which waits for it
    std::uint64_t lane_round = 0;
  };
  struct RoundState {
    std::uint64_t round = 0;
    std::size_t completed = 0;  // ranks
    double time = 0;            // of the last one
    std::vector<Rank> waiting;  // to begin the round that needs this one
  };
  struct Item {  // of a channel
    double bytes = 0;
    double begin = 0;  // when the sender began
    double sent = 0;   // when it had done its part
    std::uint32_t event = kNoEvent;
    std::uint64_t round = 0;
  };
  struct Channel {
    Route route;
    std::deque<Item> items{};  // the first one's data are under way
    double arrived = 0;        // when the last one has arrived
  };

  const Program& program_of(Rank rank) const { return programs_[static_cast<std::size_t>(rank)]; }
  RankState& rank_state(Rank rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  RankTimes& times_of(Rank rank) { return times_.ranks[static_cast<std::size_t>(rank)]; }

  // Links of the network, then the memory of each host.
  std::vector<double> capacities() const {
    std::vector<double> all;
    if (network_ != nullptr)
      for (const Link& link : network_->links()) all.push_back(link.bytes_per_second);
    if (has_memory_links_) all.resize(all.size() + to_size(topology_.host_count()), host_.memory_bytes_per_second);
    return all;
  }

  // Rounds

  void begin_round(Rank rank, double time) {
    RankState& state = rank_state(rank);
    const Program& program = program_of(rank);
    if (program.waits_for_rounds && state.round >= program.depth) {
      RoundState& before = round_state(state.round - program.depth);
      if (before.completed < ranks_.size()) {
        before.waiting.push_back(rank);
        state.round_end = time;
        return;
      }
      const double begin = std::max(time, before.time + host_.times.seconds_per_hop);
      times_of(rank).waiting += begin - time;
      time = begin;
    }
    state.lanes_left = program.lanes.size();
    for (std::uint32_t lane = 0; lane < program.lanes.size(); ++lane) {
      LaneState& one = lanes_[state.first_lane + lane];
      one.next = 0;
      one.time = time;
      ready_.push(time, state.first_lane + lane);
    }
    if (program.lanes.empty()) times_of(rank).end = time;
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
    if (++state.round < program_of(lane.rank).rounds) {
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
    while (lane.next < lane.ops->size()) {
      const Op& op = (*lane.ops)[lane.next];
      RankState& state = rank_state(lane.rank);
      if (op.kind == OpKind::kWait && !lane.waited && !wait(id, op)) return;
      const double begin = std::max(lane.time, state.processor_free);
      if (begin > now_) {
        lane.time = begin;
        ready_.push(begin, id);
        return;
      }
      ++times_.operations;
      ++lane.next;
      lane.waited = false;
      const std::uint64_t elements = elements_of(program_of(lane.rank), op, state.round);
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
          if (!pass_barrier(id, op.event)) return;
          break;
      }
    }
    end_lane(lane);
  }

  void use_processor(LaneState& lane, double seconds) {
    lane.time += seconds;
    rank_state(lane.rank).processor_free = lane.time;
    times_of(lane.rank).working += seconds;
  }

  // The time that the work takes alone is its least; its bytes share the memory of the host.
  void start_work(std::uint32_t id, double bytes, double seconds) {
    LaneState& lane = lanes_[id];
    const std::size_t links = network_ == nullptr ? 0 : network_->links().size();
    const auto memory = static_cast<std::int32_t>(links + to_size(topology_.host_of(lane.rank)));
    working_[flows_.start(now_, bytes, std::span<const std::int32_t>(&memory, 1), bytes / seconds)] = id;
    rank_state(lane.rank).processor_free = std::numeric_limits<double>::infinity();
  }

  bool pass_barrier(std::uint32_t id, std::uint32_t barrier) {
    std::vector<std::uint32_t>& arrived = rank_state(lanes_[id].rank).barriers[barrier];
    arrived.push_back(id);
    if (arrived.size() < program_of(lanes_[id].rank).lanes.size()) return false;
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

  // Channels

  void send(const LaneState& lane, const Op& op, double bytes) {
    const std::uint64_t key = (static_cast<std::uint64_t>(lane.rank) << 32) | static_cast<std::uint32_t>(op.peer);
    std::unique_ptr<Channel>& channel = channels_[key];
    if (channel == nullptr) channel = std::make_unique<Channel>(Channel{.route = route_between(lane.rank, op.peer)});
    channel->items.push_back({bytes, now_, lane.time, op.event, rank_state(lane.rank).round});
    if (channel->items.size() == 1) advance(*channel);
  }

  Route route_between(Rank from, Rank to) const {
    const auto nic = [&](Rank rank) {
      const std::vector<Rank>& all = topology_.ranks_of_host(topology_.host_of(rank));
      const auto place = static_cast<int>(std::lower_bound(all.begin(), all.end(), rank) - all.begin());
      return place * model_.nics / static_cast<int>(all.size());
    };
    return network_->route(topology_.host_of(from), nic(from), topology_.host_of(to), nic(to));
  }

  // Delivers the events before the next data, and starts these. Data flow from the beginning of the sender's part, and
  // arrive later by the length of that part, which is the same as if they followed it.
  void advance(Channel& channel) {
    while (!channel.items.empty() && channel.items.front().bytes == 0) {
      deliver(channel, channel.items.front().sent);
      channel.items.pop_front();
    }
    if (!channel.items.empty())
      sending_[flows_.start(now_, channel.items.front().bytes, channel.route.links)] = &channel;
  }

  // `sent`: when the first item has left the sender.
  void deliver(Channel& channel, double sent) {
    const Item& item = channel.items.front();
    channel.arrived = std::max(channel.arrived, sent + channel.route.latency);
    if (item.event != kNoEvent) arrive(item.event, item.round, channel.arrived);
  }

  void end_flow(FlowId flow) {
    if (const auto work = working_.find(flow); work != working_.end()) {
      LaneState& lane = lanes_[work->second];
      times_of(lane.rank).working += now_ - lane.time;
      lane.time = now_;
      rank_state(lane.rank).processor_free = now_;
      ready_.push(now_, work->second);
      working_.erase(work);
      return;
    }
    const auto sent = sending_.find(flow);
    Channel& channel = *sent->second;
    sending_.erase(sent);
    deliver(channel, now_ + channel.items.front().sent - channel.items.front().begin);
    channel.items.pop_front();
    advance(channel);
  }

  Status check_ended() const {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
      if (!programs_[rank].lanes.empty() && ranks_[rank].round < programs_[rank].rounds)
        return {StatusCode::kInternal, fmt::format("rank {} waits forever in round {}", rank, ranks_[rank].round)};
    return {};
  }

  const std::vector<Program>& programs_;
  const HostModel& host_;
  const NetworkModel& model_;
  const topology::Topology& topology_;
  const Network* network_;
  bool has_memory_links_;
  double now_ = 0;
  Flows flows_;
  EventQueue<std::uint32_t> ready_;  // lanes
  std::vector<LaneState> lanes_;
  std::vector<RankState> ranks_;
  std::uint64_t slots_ = 1;
  std::vector<Arrival> arrivals_;
  std::vector<RoundState> rounds_;  // those of the slowest rank's gate to those of the fastest rank
  std::unordered_map<std::uint64_t, std::unique_ptr<Channel>> channels_;
  std::unordered_map<FlowId, Channel*> sending_;
  std::unordered_map<FlowId, std::uint32_t> working_;  // lanes
  PlanTimes times_;
};

}  // namespace

Result<PlanTimes> run_programs(const std::vector<Program>& programs, std::uint32_t events, const Machine& machine,
                               const topology::Topology& topology, const Network* network) {
  return Run(programs, events, machine, topology, network).run();
}

Result<PlanTimes> run_plan(const plan::Plan& plan, const exec::RequestRecord& request, std::size_t slot_bytes,
                           const Machine& machine, const topology::Topology& topology) {
  ACCORD_ASSIGN_OR_RETURN(const Programs all, programs_of(plan, request, slot_bytes, machine, topology));
  std::unique_ptr<Network> network;
  if (topology.host_count() > 1) network = std::make_unique<Network>(machine.network, topology.host_count());
  ACCORD_ASSIGN_OR_RETURN(PlanTimes times, run_programs(all.programs, all.events, machine, topology, network.get()));
  if (network != nullptr) times.links = network->links();
  return times;
}

}  // namespace accord::sim
