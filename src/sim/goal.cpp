#include "sim/goal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

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
      : goal_(goal), machine_(machine), topology_(topology) {}

  Result<Schedule> build() {
    schedule_.ranks = goal_.ranks;
    schedule_.ops.reserve(goal_.tasks.size());
    schedule_.tasks.reserve(goal_.tasks.size());
    next_.resize(goal_.tasks.size());
    unmatched_.reserve(goal_.tasks.size() / 2);
    for (std::uint32_t i = 0; i < goal_.tasks.size(); ++i) {
      const GoalTask& task = goal_.tasks[i];
      schedule_.streams = std::max(schedule_.streams, static_cast<int>(task.stream) + 1);
      schedule_.tasks.push_back({.rank = task.rank, .stream = task.stream});
      if (task.kind == GoalKind::kCompute) {
        add_op(i, {.kind = OpKind::kCompute, .seconds = 1e-9 * static_cast<double>(task.amount)});
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
    schedule_.after_end = successors_of(goal_.after_end);
    schedule_.after_begin = successors_of(goal_.after_begin);
    return std::move(schedule_);
  }

 private:
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
    return sends ? add_message(number, other) : add_message(other, number);
  }

  Status add_message(std::uint32_t sent, std::uint32_t received) {
    const GoalTask& from = goal_.tasks[sent];
    const GoalTask& to = goal_.tasks[received];
    if (to.amount < from.amount)
      return {StatusCode::kInvalidArgument, fmt::format("rank {} receives {} bytes from rank {}, which sends {}",
                                                        to.rank, to.amount, from.rank, from.amount)};
    const std::uint32_t event = schedule_.events++;
    const HostTimes& times = machine_.host.times;
    if (topology_.host_of(from.rank) == topology_.host_of(to.rank)) {
      const auto bytes = static_cast<double>(from.amount);
      const double copy = 2 * bytes * times.touched.seconds_per_byte(bytes);
      const double written = copy + bytes * times.published.seconds_per_byte_of_step(bytes);
      const double read = copy + bytes * times.exchanged.seconds_per_byte_of_step(bytes);
      const double step = times.seconds_per_step;
      add_op(sent, {.kind = OpKind::kWork, .seconds = written});
      add_op(sent, {.kind = OpKind::kNotify, .peer = to.rank, .event = event, .seconds = step});
      add_op(received, {.kind = OpKind::kWait, .event = event, .seconds = step});
      add_op(received, {.kind = OpKind::kWork, .seconds = read});
      return {};
    }
    const double message = machine_.network.message_seconds;
    add_op(sent, {.kind = OpKind::kSend,
                  .is_remote = true,
                  .peer = to.rank,
                  .event = event,
                  .channel = channel_between(from.rank, to.rank),
                  .length = from.amount,
                  .seconds = message,
                  .bytes_per_element = 1});
    add_op(received, {.kind = OpKind::kWait, .is_remote = true, .event = event, .seconds = message});
    return {};
  }

  // All operations of a task are added one after the other.
  void add_op(std::uint32_t number, const Op& op) {
    Task& task = schedule_.tasks[number];
    if (task.op_count++ == 0) task.first_op = static_cast<std::uint32_t>(schedule_.ops.size());
    schedule_.ops.push_back(op);
  }

  std::uint32_t channel_between(Rank from, Rank to) {
    const std::uint64_t pair = (static_cast<std::uint64_t>(from) << 32) | static_cast<std::uint32_t>(to);
    const auto [known, is_new] = channels_.try_emplace(pair, static_cast<std::uint32_t>(schedule_.channels.size()));
    if (is_new) schedule_.channels.push_back({from, to});
    return known->second;
  }

  Successors successors_of(std::vector<GoalEdge> edges) const {
    std::stable_sort(edges.begin(), edges.end());
    Successors result;
    result.first.reserve(goal_.tasks.size() + 1);
    std::size_t edge = 0;
    for (std::uint32_t task = 0; task <= goal_.tasks.size(); ++task) {
      while (edge < edges.size() && edges[edge].before < task) result.tasks.push_back(edges[edge++].task);
      result.first.push_back(static_cast<std::uint32_t>(result.tasks.size()));
    }
    return result;
  }

  const Goal& goal_;
  const Machine& machine_;
  const topology::Topology& topology_;
  Schedule schedule_;
  std::unordered_map<MessageKey, Unmatched, MessageKeyHash> unmatched_;
  std::vector<std::uint32_t> next_;  // by task: the one that waits behind it
  std::unordered_map<std::uint64_t, std::uint32_t> channels_;
};

}  // namespace

Result<Schedule> schedule_of(const Goal& goal, const Machine& machine, const topology::Topology& topology) {
  return GoalSchedule(goal, machine, topology).build();
}

}  // namespace accord::sim
