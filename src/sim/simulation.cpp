// The loop over events, and what tasks and calls do at them.
#include "sim/simulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace accord::sim {
namespace {

constexpr std::size_t kMostEntries = 30'000'000;  // 2 GB

Programs direct_programs(const Schedule& schedule) {
  Programs programs;
  programs.events = schedule.events;
  programs.channels = schedule.channels;
  programs.slice = std::numeric_limits<std::uint64_t>::max();
  return programs;
}

}  // namespace

Simulation::Simulation(const Schedule& schedule, const Machine& machine, const topology::Topology& topology,
                       const Network* network, Sharing sharing, Journal* journal)
    : schedule_(schedule),
      host_(machine.host),
      topology_(topology),
      hosts_(topology.host_of(static_cast<Rank>(schedule.ranks) - 1) + 1),
      has_memory_links_(machine.host.memory_bytes_per_second > 0),
      memory_(std::vector<double>(has_memory_links_ ? to_size(hosts_) : 0, machine.host.memory_bytes_per_second)),
      messages_(topology, network, machine.network.nics, hosts_, sharing, journal),
      journal_(journal),
      processors_(to_size(schedule.ranks) * to_size(schedule.streams)),
      cores_(machine, to_size(schedule.ranks)),
      direct_programs_(direct_programs(schedule)),
      direct_(kNone, direct_programs_, processors_.size()),
      calls_(schedule.calls.size()),
      tasks_(schedule.tasks.size()) {
  for (Rank rank = 0; rank < schedule.ranks; ++rank)
    for (std::uint32_t i = 0; i < to_size(schedule.streams); ++i) {
      const std::uint32_t stream = stream_of(rank, i);
      direct_.members[stream] = {.call = &direct_, .rank = rank, .stream = stream};
    }
  times_.ranks.resize(to_size(schedule.ranks));
  for (const Successors* successors : {&schedule.after_end, &schedule.after_begin})
    for (const std::uint32_t successor : successors->tasks) ++tasks_[successor].waits_for;
}

Result<Times> Simulation::run() {
  for (std::uint32_t task = 0; task < tasks_.size(); ++task)
    if (tasks_[task].waits_for == 0) to_begin_.push_back(task);
  begin_tasks();
  while (true) {
    const double lane = ready_.empty() ? std::numeric_limits<double>::infinity() : ready_.top().time;
    const double work = memory_.next_event();
    const double message = messages_.next_event();
    now_ = std::min({lane, work, message});
    if (now_ == std::numeric_limits<double>::infinity()) break;
    if (journal_ != nullptr && journal_->entries.size() > kMostEntries)
      return Status(StatusCode::kUnsupported, fmt::format("there are more than {} operations, which is the most that "
                                                          "can be recorded; simulate fewer ranks, bytes or calls",
                                                          kMostEntries));
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
  times_.simulated_ranks = schedule_.ranks;
  return std::move(times_);
}

Status Simulation::check_ended() const {
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i].has_ended) continue;
    const Task& task = schedule_.tasks[i];
    const std::string where = task.call == kNone || calls_[task.call] == nullptr
                                  ? fmt::format("task {}", i)
                                  : fmt::format("round {}", calls_[task.call]->members[to_size(task.member)].round);
    return {StatusCode::kInternal, fmt::format("rank {} waits forever in {}", task.rank, where)};
  }
  return {};
}

// Tasks

void Simulation::begin_tasks() {
  for (std::size_t i = 0; i < to_begin_.size(); ++i) {
    const std::uint32_t task = to_begin_[i];
    begin_task(task);
    release(schedule_.after_begin.of(task), tasks_[task].begin);
  }
  to_begin_.clear();
}

void Simulation::release(std::span<const std::uint32_t> tasks, const Moment& moment) {
  for (const std::uint32_t task : tasks) {
    tasks_[task].begin.wait_for(moment);
    if (--tasks_[task].waits_for == 0) to_begin_.push_back(task);
  }
}

void Simulation::begin_task(std::uint32_t id) {
  const Task& task = schedule_.tasks[id];
  const std::uint32_t stream = stream_of(task.rank, task.stream);
  if (task.call == kNone) {
    const std::span ops = std::span(schedule_.ops).subspan(task.first_op, task.op_count);
    start_lane(lanes_.add({.member = &direct_.members[stream], .ops = ops, .task = id, .moment = tasks_[id].begin}));
    return;
  }
  MemberState& member = call_state(task.call).members[to_size(task.member)];
  member.call = calls_[task.call].get();
  member.member = task.member;
  member.rank = task.rank;
  member.stream = stream;
  member.task = id;
  begin_round(member, tasks_[id].begin);
}

void Simulation::end_task(std::uint32_t id, Moment end) {
  tasks_[id].has_ended = true;
  RankTimes& times = times_of(schedule_.tasks[id].rank);
  times.end = std::max(times.end, end.time);
  end.reason = Reason::kOrder;
  release(schedule_.after_end.of(id), end);
  begin_tasks();
}

void Simulation::start_lane(std::uint32_t id) {
  cores_.go_on(lanes_[id].member->rank, id);
  ready_.push(lanes_[id].moment.time, id);
}

void Simulation::end_lane(std::uint32_t id) {
  const LaneState& lane = lanes_[id];
  MemberState& member = *lane.member;
  if (member.call == &direct_) {
    const std::uint32_t task = lane.task;
    const Moment end = lane.moment;
    lanes_.remove(id);
    return end_task(task, end);
  }
  if (member.round_end.time <= lane.moment.time) member.round_end = lane.moment;
  if (--member.lanes_left == 0) end_round(member);
}

// Calls

CallState& Simulation::call_state(std::uint32_t id) {
  const GroupCall& call = schedule_.calls[id];
  if (calls_[id] == nullptr) calls_[id] = std::make_unique<CallState>(id, *call.programs, call.size());
  return *calls_[id];
}

void Simulation::begin_round(MemberState& member, Moment begin) {
  CallState& call = *member.call;
  const Programs& programs = call.programs;
  if (programs.waits_for_rounds && member.round >= programs.depth) {
    RoundState& before = call.round_state(member.round - programs.depth);
    if (before.completed < call.members.size()) {
      before.waiting.push_back(&member);
      member.round_end = begin;
      return;
    }
    const double came = begin.time;
    begin.wait_for({before.moment.time + host_.times.seconds_per_hop, before.moment.entry, Reason::kRound});
    begin.time += seconds_of_gate(member);
    begin.reason = Reason::kRound;
    times_of(member.rank).waiting += begin.time - came;
  }
  if (member.round % programs.rounds == 0) begin.time += host_.call_seconds;
  const Program& program = call.program_of(member);
  member.lanes_left = program.size();
  member.round_end = {};
  for (std::uint32_t number = 0; number < program.size(); ++number) {
    if (member.lanes.size() == number)
      member.lanes.push_back(lanes_.add({.member = &member, .number = number, .task = member.task}));
    LaneState& lane = lanes_[member.lanes[number]];
    lane.ops = program[number];
    lane.next = 0;
    lane.moment = begin;
    start_lane(member.lanes[number]);
  }
}

// A rank reads a line of each other rank of its host to see which rounds they have completed. It often sees several.
double Simulation::seconds_of_gate(const MemberState& member) const {
  constexpr double kLine = 64;
  const auto others = static_cast<double>(topology_.ranks_of_host(topology_.host_of(member.rank)).size() - 1);
  return others * kLine * host_.times.exchanged.seconds_per_byte_of_step(kLine) / member.call->programs.depth;
}

void Simulation::end_round(MemberState& member) {
  CallState& call = *member.call;
  RoundState& completed = call.round_state(member.round);
  ++completed.completed;
  completed.moment.wait_for(member.round_end);
  std::vector<MemberState*> waiting;
  if (completed.completed == call.members.size()) waiting.swap(completed.waiting);
  member.round_end.reason = Reason::kOrder;
  ++member.round < call.all_rounds ? begin_round(member, member.round_end) : end_member(member);
  for (MemberState* other : waiting) begin_round(*other, other->round_end);
}

void Simulation::end_member(MemberState& member) {
  CallState& call = *member.call;
  const std::uint32_t task = member.task;
  const Moment end = member.round_end;
  for (const std::uint32_t lane : member.lanes) lanes_.remove(lane);
  if (++call.ended == call.members.size()) {
    for (const std::uint32_t channel : call.channels)
      if (channel != kNone) messages_.close(channel);
    calls_[call.id].reset();
  }
  end_task(task, end);
}

}  // namespace accord::sim
