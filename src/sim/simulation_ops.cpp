// Operations of lanes, and the events that they wait for.
#include <limits>

#include "sim/simulation.hpp"

namespace accord::sim {
namespace {

constexpr double kShortWork = 1e-6;  // seconds below which work is not slowed down by others' use of the memory
constexpr double kUnknown = std::numeric_limits<double>::infinity();  // the end of work that shares the memory

}  // namespace

// Runs operations of the lane until one of them waits, or begins later than now. A lane that ends gives up its core
// before its rank's next round or task, so that other ranks that wait for the core come first.
void Simulation::run_lane(std::uint32_t id) {
  const Rank rank = lanes_[id].member->rank;
  if (!cores_.begin(rank, id, now_)) return grant_cores();
  const Stop stop = run_ops(id);
  if (stop == Stop::kLater) return;
  if (stop == Stop::kEnd) end_lane(id);
  cores_.stop(rank, id);
  release_core(rank);
}

Simulation::Stop Simulation::run_ops(std::uint32_t id) {
  LaneState& lane = lanes_[id];
  MemberState& member = *lane.member;
  CallState& call = *member.call;
  while (lane.next < lane.ops.size()) {
    const Op& op = lane.ops[lane.next];
    if (op.kind == OpKind::kWait && !lane.waited && !wait(id, op)) return Stop::kWait;
    const Moment& processor = processor_of(member);
    if (processor.time == kUnknown) {
      parked_[member.stream].push_back(id);
      return Stop::kLater;
    }
    if (processor.time > lane.moment.time) lane.moment = {processor.time, processor.entry, Reason::kProcessor};
    if (lane.moment.time > now_) {
      ready_.push(lane.moment.time, id);
      return Stop::kLater;
    }
    ++times_.operations;
    ++lane.next;
    lane.waited = false;
    const std::uint64_t elements = elements_of(op, call.programs.slice, member.round % call.programs.rounds);
    const double seconds = seconds_of(op, elements);
    const double bytes = bytes_of(op, elements);
    const std::uint32_t entry = enter(lane, op, bytes);
    if (op.kind == OpKind::kWork && has_memory_links_ && seconds > kShortWork && bytes > 0) {
      start_work(id, bytes, seconds, entry);
      return Stop::kLater;
    }
    times_of(member.rank).working += seconds;
    end_op(lane, {lane.moment.time + seconds, entry, Reason::kOrder});
    switch (op.kind) {
      case OpKind::kWork:
      case OpKind::kCompute:
      case OpKind::kWait: break;
      case OpKind::kNotify:
        if (op.is_remote) {
          send(lane, op, 0);
        } else {
          const double hop = op.peer == member.member ? 0 : host_.times.seconds_per_hop;
          arrive(call, op.event, member.round, {lane.moment.time + hop, entry, Reason::kSignal});
        }
        break;
      case OpKind::kSend: send(lane, op, bytes); break;
      case OpKind::kBarrier:
        if (!pass_barrier(id, op.event)) return Stop::kWait;
        break;
    }
  }
  return Stop::kEnd;
}

void Simulation::release_core(Rank rank) {
  double free = now_;
  for (std::uint32_t stream = 0; stream < to_size(schedule_.streams); ++stream)
    free = std::max(free, processors_[stream_of(rank, stream)].time);
  cores_.release_if_idle(rank, free);
  grant_cores();
}

void Simulation::grant_cores() {
  for (const auto& [lane, time] : cores_.granted()) {
    Moment& moment = lanes_[lane].moment;
    moment.wait_for({time, moment.entry, Reason::kCore});
    ready_.push(moment.time, lane);
  }
}

// Returns the number of the operation in the journal. It begins now.
std::uint32_t Simulation::enter(const LaneState& lane, const Op& op, double bytes) {
  if (journal_ == nullptr) return kNone;
  const MemberState& member = *lane.member;
  journal_->entries.push_back({.begin = lane.moment.time,
                               .end = lane.moment.time,
                               .bytes = bytes,
                               .rank = member.rank,
                               .peer = op.peer,
                               .lane = lane.number,
                               .task = lane.task,
                               .round = static_cast<std::uint32_t>(member.round),
                               .cause = lane.moment.entry,
                               .reason = lane.moment.reason,
                               .kind = op.kind});
  return static_cast<std::uint32_t>(journal_->entries.size() - 1);
}

void Simulation::end_op(LaneState& lane, const Moment& end) {
  lane.moment = end;
  processor_of(*lane.member) = end;
  if (journal_ != nullptr) journal_->entries[end.entry].end = end.time;
}

// The time that the work takes alone is its least; its bytes share the memory of the host.
void Simulation::start_work(std::uint32_t id, double bytes, double seconds, std::uint32_t entry) {
  LaneState& lane = lanes_[id];
  const std::int32_t memory = topology_.host_of(lane.member->rank);
  const FlowId flow = memory_.start_limited(now_, bytes, std::span<const std::int32_t>(&memory, 1), bytes / seconds);
  if (flow >= working_.size()) working_.resize(flow + 1);
  working_[flow] = id;
  lane.moment.entry = entry;
  processor_of(*lane.member) = {kUnknown, entry, Reason::kProcessor};
}

void Simulation::end_work(FlowId flow) {
  const std::uint32_t id = working_[flow];
  LaneState& lane = lanes_[id];
  times_of(lane.member->rank).working += now_ - lane.moment.time;
  end_op(lane, {now_, lane.moment.entry, Reason::kOrder});
  if (const auto parked = parked_.find(lane.member->stream); parked != parked_.end()) {
    for (const std::uint32_t other : parked->second) ready_.push(now_, other);
    parked_.erase(parked);
  }
  ready_.push(now_, id);
}

bool Simulation::pass_barrier(std::uint32_t id, std::uint32_t barrier) {
  const Moment last = lanes_[id].moment;
  MemberState& member = *lanes_[id].member;
  std::vector<std::uint32_t>& arrived = member.barriers[barrier];
  arrived.push_back(id);
  if (arrived.size() < member.lanes.size()) return false;
  for (const std::uint32_t other : arrived) {
    if (other == id) continue;
    lanes_[other].moment = {last.time, last.entry, Reason::kBarrier};
    ready_.push(last.time, other);
  }
  arrived.clear();
  return true;
}

// Events

// Returns true if the event has happened; then the lane's time is that at which it knows.
bool Simulation::wait(std::uint32_t id, const Op& op) {
  LaneState& lane = lanes_[id];
  const std::uint64_t round = lane.member->round;
  Arrival& event = lane.member->call->arrival(op.event, round);
  if (event.round != round) {
    event.lane = id;
    event.lane_round = round;
    return false;
  }
  hear(lane, event.moment);
  return true;
}

void Simulation::hear(LaneState& lane, const Moment& moment) {
  lane.waited = true;
  if (moment.time <= lane.moment.time) return;
  times_of(lane.member->rank).waiting += moment.time - lane.moment.time;
  lane.moment = moment;
}

void Simulation::arrive(CallState& call, std::uint32_t event, std::uint64_t round, const Moment& moment) {
  Arrival& arrived = call.arrival(event, round);
  arrived.round = round;
  arrived.moment = moment;
  if (arrived.lane == kNone || arrived.lane_round != round) return;
  const std::uint32_t id = arrived.lane;
  arrived.lane = kNone;
  hear(lanes_[id], moment);
  ready_.push(lanes_[id].moment.time, id);
}

// Messages

void Simulation::send(const LaneState& lane, const Op& op, double bytes) {
  CallState& call = *lane.member->call;
  std::uint32_t& channel = call.channels[op.channel];
  if (channel == kNone) {
    const Channel& ends = call.programs.channels[op.channel];
    const auto rank_of = [&](Rank member) {
      return call.id == kNone ? member : schedule_.calls[call.id].rank_of(member);
    };
    channel = messages_.open(rank_of(ends.from), rank_of(ends.to));
  }
  const MessageEvent event{call.id, op.event, lane.member->round, lane.moment.entry};
  messages_.send(now_, channel, {bytes, now_, lane.moment.time, event});
  take_deliveries();
}

void Simulation::take_deliveries() {
  for (const auto& [event, time] : messages_.delivered()) {
    CallState* const call = event.call == kNone ? &direct_ : calls_[event.call].get();
    if (call != nullptr) arrive(*call, event.event, event.round, {time, event.sender, Reason::kMessage});
  }
  messages_.delivered().clear();
}

}  // namespace accord::sim
