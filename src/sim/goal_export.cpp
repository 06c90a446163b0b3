// A rank's messages to another one between two signals become one GOAL message, as they do in the simulation.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "base/rounding.hpp"
#include "sim/goal.hpp"

namespace accord::sim {
namespace {

constexpr std::size_t kMostTasks = 20000000;

std::uint64_t nanoseconds(double seconds) { return static_cast<std::uint64_t>(std::llround(seconds * 1e9)); }

class GoalExport {
 public:
  explicit GoalExport(const Programs& programs) : programs_(programs) {}

  Result<Goal> run() {
    goal_.ranks = programs_.ranks;
    if (programs_.events * programs_.rounds * programs_.calls > std::numeric_limits<std::uint32_t>::max())
      return Status(StatusCode::kUnsupported, "there are more signals than tags; export fewer bytes or calls");
    find_data();
    for (Rank rank = 0; rank < programs_.ranks; ++rank) {
      last_of_round_.clear();
      for (std::uint64_t round = 0; round < programs_.rounds * programs_.calls; ++round) add_round(rank, round);
      if (goal_.tasks.size() > kMostTasks)
        return Status(StatusCode::kUnsupported,
                      fmt::format("more than {} tasks; export fewer ranks, bytes or calls", kMostTasks));
    }
    return std::move(goal_);
  }

 private:
  // With an event come the data that the lane of its sender has sent to the same rank since the event before.
  void find_data() {
    senders_.resize(programs_.events);
    for (Rank rank = 0; rank < programs_.ranks; ++rank)
      for (const Lane& lane : programs_.programs[to_size(rank)]) {
        std::unordered_map<Rank, std::vector<Op>> sent;
        for (const Op& op : lane) {
          if (op.kind == OpKind::kSend) sent[op.peer].push_back(op);
          if (op.event == kNone || op.kind == OpKind::kWait || op.kind == OpKind::kBarrier) continue;
          data_[op.event] = std::exchange(sent[op.peer], {});
          senders_[op.event] = rank;
        }
      }
  }

  std::uint64_t elements_in(const Op& op, std::uint64_t round) const {
    return elements_of(op, programs_.slice, round % programs_.rounds);
  }

  std::uint64_t bytes_of(std::uint32_t event, std::uint64_t round) const {
    double bytes = 0;
    if (const auto found = data_.find(event); found != data_.end())
      for (const Op& op : found->second) bytes += sim::bytes_of(op, elements_in(op, round));
    return static_cast<std::uint64_t>(std::llround(bytes));
  }

  void add_round(Rank rank, std::uint64_t round) {
    const std::vector<std::uint32_t> before = std::exchange(last_of_round_, {});
    const Program& program = programs_.programs[to_size(rank)];
    std::vector<std::vector<std::uint32_t>> after(program.size(), before);  // what the next task of a lane waits for
    std::vector<std::size_t> next(program.size());
    notified_.clear();
    waiting_.clear();
    // Lanes run until a barrier, at which all of them meet.
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      std::vector<std::uint32_t> met;
      for (std::uint32_t lane = 0; lane < program.size(); ++lane) {
        for (; next[lane] < program[lane].size(); ++next[lane]) {
          const Op& op = program[lane][next[lane]];
          if (op.kind == OpKind::kBarrier) break;
          add(rank, lane, op, round, after[lane]);
        }
        if (next[lane] < program[lane].size()) {
          ++next[lane];
          goes_on = true;
        }
        met.insert(met.end(), after[lane].begin(), after[lane].end());
      }
      std::sort(met.begin(), met.end());
      met.erase(std::unique(met.begin(), met.end()), met.end());
      for (auto& one : after) one = met;
      last_of_round_ = std::move(met);
    }
    for (const auto& [event, task] : waiting_)
      for (const std::uint32_t before_it : notified_[event]) goal_.after_end.push_back({before_it, task});
  }

  void add(Rank rank, std::uint32_t lane, const Op& op, std::uint64_t round, std::vector<std::uint32_t>& after) {
    GoalTask task{.rank = rank, .stream = lane};
    switch (op.kind) {
      case OpKind::kCompute:
      case OpKind::kWork:
        task.amount = nanoseconds(seconds_of(op, elements_in(op, round)));
        if (task.amount == 0) return;
        break;
      case OpKind::kSend:
        if (op.event == kNone) return;
        [[fallthrough]];
      case OpKind::kNotify: task.kind = GoalKind::kSend; break;
      case OpKind::kWait: task.kind = GoalKind::kReceive; break;
      case OpKind::kBarrier: return;
    }
    if (task.kind != GoalKind::kCompute) {
      task.peer = task.kind == GoalKind::kSend ? op.peer : senders_[op.event];
      task.tag = static_cast<std::uint32_t>(op.event + round * programs_.events);
      task.amount = bytes_of(op.event, round);
      const std::uint64_t written = nanoseconds(seconds_of(op, elements_in(op, round)) - op.seconds);  // packets
      if (task.kind == GoalKind::kSend && written > 0) append({.rank = rank, .stream = lane, .amount = written}, after);
      if (task.peer == rank) return add_local(task, op, after);
    }
    append(task, after);
  }

  // A signal between lanes of a rank is an order of their tasks.
  void add_local(const GoalTask& task, const Op& op, std::vector<std::uint32_t>& after) {
    if (task.kind == GoalKind::kSend) {
      notified_[op.event] = after;
    } else {
      append({.rank = task.rank, .stream = task.stream}, after);
      waiting_[op.event] = after[0];
    }
  }

  void append(const GoalTask& task, std::vector<std::uint32_t>& after) {
    const auto number = static_cast<std::uint32_t>(goal_.tasks.size());
    for (const std::uint32_t one : after) goal_.after_end.push_back({one, number});
    after = {number};
    goal_.tasks.push_back(task);
  }

  const Programs& programs_;
  Goal goal_;
  std::vector<Rank> senders_;                                               // by event
  std::unordered_map<std::uint32_t, std::vector<Op>> data_;                 // by event
  std::vector<std::uint32_t> last_of_round_;                                // tasks of the rank
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> notified_;  // tasks before a local event, of the round
  std::unordered_map<std::uint32_t, std::uint32_t> waiting_;                // the task after it
};

}  // namespace

Result<Goal> goal_of(const Programs& programs) { return GoalExport(programs).run(); }

}  // namespace accord::sim
