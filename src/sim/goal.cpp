#include "sim/goal.hpp"

#include <fmt/format.h>

#include <unordered_map>
#include <vector>

#include "sim/schedule_builder.hpp"

namespace accord::sim {
namespace {

struct MessageKey {
  Rank from = 0, to = 0;
  std::uint32_t tag = 0;
  bool operator==(const MessageKey&) const = default;
};
struct MessageKeyHash {
  std::size_t operator()(const MessageKey& key) const {
    const std::uint64_t ranks =
        (static_cast<std::uint64_t>(static_cast<std::uint32_t>(key.from)) << 32) | static_cast<std::uint32_t>(key.to);
    return (ranks * 0x9e3779b97f4a7c15u) ^ (key.tag * 0xc2b2ae3d27d4eb4fu);
  }
};

// Sends or receives that wait for a match, in their order: the first and the last task, kNone if there are none.
struct Unmatched {
  std::uint32_t first = kNone, last = kNone;
};

class GoalSchedule {
 public:
  GoalSchedule(const Goal& goal, const Machine& machine, const topology::Topology& topology)
      : goal_(goal), builder_(machine, topology, 0) {}

  Result<Schedule> build() {
    next_.resize(goal_.tasks.size());
    unmatched_.reserve(goal_.tasks.size() / 2);
    for (std::uint32_t i = 0; i < goal_.tasks.size(); ++i) {
      const GoalTask& task = goal_.tasks[i];
      builder_.add_task(task.rank, task.stream, label_of(task.kind));
      if (task.kind == GoalKind::kCompute) {
        builder_.compute(i, 1e-9 * static_cast<double>(task.amount));
      } else {
        ACCORD_RETURN_IF_ERROR(match(i));
      }
    }
    for (const auto& [key, left] : unmatched_)
      if (left.first != kNone) {
        const bool sends = goal_.tasks[left.first].kind == GoalKind::kSend;
        return Status(
            StatusCode::kInvalidArgument,
            fmt::format("a {} of rank {} with tag {} has no {} of rank {}", sends ? "send" : "receive",
                        sends ? key.from : key.to, key.tag, sends ? "receive" : "send", sends ? key.to : key.from));
      }
    for (const GoalEdge& edge : goal_.after_end) builder_.after_end(edge.before, edge.task);
    for (const GoalEdge& edge : goal_.after_begin) builder_.after_begin(edge.before, edge.task);
    return std::move(builder_).take();
  }

 private:
  static std::string_view label_of(GoalKind kind) {
    switch (kind) {
      case GoalKind::kCompute: return "computation";
      case GoalKind::kSend: return "send";
      case GoalKind::kReceive: break;
    }
    return "receive";
  }

  Status match(std::uint32_t number) {
    const GoalTask& task = goal_.tasks[number];
    const bool sends = task.kind == GoalKind::kSend;
    const MessageKey key{sends ? task.rank : task.peer, sends ? task.peer : task.rank, task.tag};
    Unmatched& others = unmatched_[key];
    if (others.first == kNone || goal_.tasks[others.first].kind == task.kind) {
      (others.first == kNone ? others.first : next_[others.last]) = number;
      others.last = number;
      return {};
    }
    const std::uint32_t other = others.first;
    others.first = other == others.last ? kNone : next_[other];
    const std::uint32_t sent = sends ? number : other, received = sends ? other : number;
    if (goal_.tasks[received].amount < goal_.tasks[sent].amount)
      return {StatusCode::kInvalidArgument,
              fmt::format("rank {} receives {} bytes from rank {}, which sends {}", goal_.tasks[received].rank,
                          goal_.tasks[received].amount, goal_.tasks[sent].rank, goal_.tasks[sent].amount)};
    builder_.message(sent, received, goal_.tasks[sent].amount);
    return {};
  }

  const Goal& goal_;
  ScheduleBuilder builder_;
  std::unordered_map<MessageKey, Unmatched, MessageKeyHash> unmatched_;
  std::vector<std::uint32_t> next_;  // by task: the one that waits behind it
};

}  // namespace

Result<Schedule> schedule_of(const Goal& goal, const Machine& machine, const topology::Topology& topology) {
  return GoalSchedule(goal, machine, topology).build();
}

}  // namespace accord::sim
