#include "simulation/observer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "comm/group.hpp"

namespace accord::simulation {
namespace {

/// A call may end this much later than its timeout: a share for waits that have become slow, and the time that its
/// thread had no core.
constexpr Time kSlack = 40 * kMillisecond;
constexpr Time kSlackShare = 32;
/// From a member's death until calls end: a second, and what the kernel takes to tear a process down.
constexpr Time kDeathTime = 1300 * kMillisecond;

}  // namespace

GroupId id_of(const Communicator& communicator) { return communicator.group()->membership().id; }

std::vector<int> members_of(const Communicator& communicator) {
  std::vector<int> processes;
  const topology::Topology& topology = communicator.group()->topology();
  for (const Rank rank : topology.ranks()) processes.push_back(topology.place(rank).process);
  return processes;
}

void Observer::complain(const std::string& text) {
  const SimulatorWork work;
  const Fiber* const fiber = Scheduler::fiber();
  violations_.push_back(fmt::format("{:.3f} ms, {}: {}", static_cast<double>(world_.scheduler().now()) / kMillisecond,
                                    fiber == nullptr ? "at the end" : fiber->process->name, text));
}

void Observer::count(const std::string& what) {
  const SimulatorWork work;
  ++counts_[what];
}

void Observer::count_fault(const char* what, const Process& process) {
  const SimulatorWork work;
  const auto call = calls_.find(process.pid);
  const bool is_in_call = call != calls_.end() && call->second != nullptr;
  count(fmt::format("{} in {}", what, is_in_call ? call->second : "no call"));
}

Observer::Call Observer::begin(const char* name, Time limit) {
  const SimulatorWork work;
  calls_[Scheduler::fiber()->process->pid] = name;
  return {.name = name,
          .begin = world_.scheduler().now(),
          .paused_before = Scheduler::fiber()->process->paused_by(world_.scheduler().now()),
          .limit = limit};
}

void Observer::check_duration(const Call& call, const Status& status) {
  const Time now = world_.scheduler().now();
  const Time paused = Scheduler::fiber()->process->paused_by(now) - call.paused_before;
  const Time took = now - call.begin - paused;
  if (took > call.limit + call.limit / kSlackShare + kSlack)
    complain(fmt::format("{} took {} ms, its limit is {} ms: {}", call.name, took / kMillisecond,
                         call.limit / kMillisecond, status.to_string()));
}

bool Observer::has_gone(GroupId group, int process) const {
  const Process* const found = world_.scheduler().find_process(process);
  return found == nullptr || found->has_ended || closed_.contains({group, process});
}

void Observer::end(const Call& call, const Status& status) {
  const SimulatorWork work;
  calls_[Scheduler::fiber()->process->pid] = nullptr;
  check_duration(call, status);
  count(fmt::format("{}: {}", call.name, to_string(status.code())));
  if (status.code() == StatusCode::kInternal) complain(fmt::format("{}: {}", call.name, status.to_string()));
}

void Observer::end(const Communicator& communicator, const Call& call, const Status& status) {
  const SimulatorWork work;
  end(call, status);
  const GroupId id = id_of(communicator);
  const std::vector<int> members = members_of(communicator);
  const Process& own = *Scheduler::fiber()->process;
  const Time now = world_.scheduler().now();
  if (call.ends_with_peer && own.paused_by(now) == call.paused_before) {
    for (const int member : members) {
      const Process* const process = world_.scheduler().find_process(member);
      if (process->has_ended && now - std::max(call.begin, process->ended_at) > kDeathTime)
        complain(fmt::format("{} ended only {} ms after the death of {}: {}", call.name,
                             (now - process->ended_at) / kMillisecond, process->name, status.to_string()));
    }
  }
  if (status.code() == StatusCode::kPeerLost) {
    for (const Rank rank : status.ranks())
      if (rank < 0 || rank >= static_cast<int>(members.size()) || !has_gone(id, members[rank]))
        complain(fmt::format("{} names rank {}, which is there: {}", call.name, rank, status.to_string()));
    if (status.ranks().empty()) complain(fmt::format("{} names no rank: {}", call.name, status.to_string()));
  }
  if (status.code() == StatusCode::kTimeout && !scenario_.has(FaultKind::kPause))
    complain(fmt::format("{} timed out, though nobody was late: {}", call.name, status.to_string()));
  if (status.code() == StatusCode::kAborted && !scenario_.has(FaultKind::kAbort) && !scenario_.has(FaultKind::kPause) &&
      status.message().find("recovers") == std::string::npos)
    complain(fmt::format("{} was aborted by nobody: {}", call.name, status.to_string()));
  const bool may_differ =
      std::ranges::any_of(scenario_.steps, [](const Step& step) { return step.kind == StepKind::kMismatch; });
  if (status.code() == StatusCode::kMismatch && !may_differ)
    complain(fmt::format("{} found a mismatch: {}", call.name, status.to_string()));
}

void Observer::note_closed(const Communicator& communicator) {
  const SimulatorWork work;
  closed_.emplace(id_of(communicator), Scheduler::fiber()->process->pid);
}

void Observer::note_shrunk(const Communicator& before, const Result<Communicator>& after) {
  const SimulatorWork work;
  Shrunk& mine = shrunk_[id_of(before)].emplace_back();
  mine.process = Scheduler::fiber()->process->pid;
  mine.code = after.status().code();
  if (!after.ok()) return;
  mine.id = id_of(*after);
  mine.members = members_of(*after);
}

void Observer::compare_shrunk() {
  for (const auto& [before, results] : shrunk_) {
    const Shrunk* first = nullptr;
    for (const Shrunk& one : results) {
      const Process& process = *world_.scheduler().find_process(one.process);
      if (one.code != StatusCode::kOk) {
        if (!scenario_.has(FaultKind::kPause))
          complain(
              fmt::format("shrink() failed on {} with {}, though nobody was late", process.name, to_string(one.code)));
        continue;
      }
      if (first == nullptr) first = &one;
      if (one.id != first->id || one.members != first->members)
        complain(fmt::format("after shrink(), {} has a group of processes {} and {} one of {}",
                             world_.scheduler().find_process(first->process)->name, first->members, process.name,
                             one.members));
      if (std::ranges::find(one.members, one.process) == one.members.end())
        complain(fmt::format("after shrink(), {} is not in its own group", process.name));
    }
  }
}

}  // namespace accord::simulation
