// An operation of a rank begins as long after the last one that had ended by then as it did in the job. Clocks of hosts
// differ, so only times of one rank are compared.
#include "cli/sim/recorded_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/rounding.hpp"

namespace accord::cli {
namespace {

using flight::Operation;
using flight::Order;

// An operation that all of its ranks have recorded.
struct Recorded {
  sim::TaskId task = 0;
  std::int64_t begin = 0, end = 0;
};

const GroupEvidence& largest(const std::vector<GroupEvidence>& groups) {
  return *std::max_element(groups.begin(), groups.end(),
                           [](const auto& a, const auto& b) { return a.ranks.size() < b.ranks.size(); });
}

Result<const FlightLog*> log_of(const GroupEvidence& group, std::size_t rank) {
  if (group.ranks[rank].log) return &*group.ranks[rank].log;
  return Status(StatusCode::kInvalidArgument,
                fmt::format("there is no dump of rank {} of group \"{}\"", rank, group.name));
}

bool has_ended(const Operation& operation) {
  return operation.state == flight::OperationState::kDone && operation.ended_ns.has_value();
}

Recorded recorded(sim::TaskId task, const Operation& operation) {
  const std::int64_t end = *operation.ended_ns;
  return {task, std::min(operation.started_ns.value_or(end), end), end};
}

const Operation* find(const Order* order, std::uint64_t number) {
  if (order == nullptr) return nullptr;
  const auto found = std::lower_bound(order->operations.begin(), order->operations.end(), number,
                                      [](const Operation& one, std::uint64_t wanted) { return one.number < wanted; });
  return found == order->operations.end() || found->number != number ? nullptr : &*found;
}

class JobBuilder {
 public:
  JobBuilder(const std::vector<GroupEvidence>& groups, const sim::Machine& machine, const topology::Topology& topology,
             std::size_t slot_bytes)
      : groups_(groups), builder_(machine, topology, slot_bytes) {}

  Result<RecordedJob> build() {
    const GroupEvidence& world = largest(groups_);
    by_rank_.resize(world.ranks.size());
    for (std::size_t rank = 0; rank < world.ranks.size(); ++rank) {
      ACCORD_ASSIGN_OR_RETURN(const FlightLog* const log, log_of(world, rank));
      ranks_.emplace(std::pair(log->host, world.ranks[rank].process), static_cast<Rank>(rank));
    }
    for (const GroupEvidence& group : groups_) ACCORD_RETURN_IF_ERROR(add_group(group));
    for (Rank rank = 0; rank < static_cast<Rank>(by_rank_.size()); ++rank) order_rank(rank);
    job_.schedule = std::move(builder_).take();
    return std::move(job_);
  }

 private:
  Status add_group(const GroupEvidence& group) {
    std::vector<Rank> members;
    for (std::size_t rank = 0; rank < group.ranks.size(); ++rank) {
      ACCORD_ASSIGN_OR_RETURN(const FlightLog* const log, log_of(group, rank));
      const int process = group.ranks[rank].process;
      const auto known = ranks_.find({log->host, process});
      if (known == ranks_.end())
        return {StatusCode::kInvalidArgument,
                fmt::format("rank {} of group \"{}\" (process {}) is not in the largest group, \"{}\"", rank,
                            group.name, process, largest(groups_).name)};
      members.push_back(known->second);
    }
    ++stream_;
    ACCORD_RETURN_IF_ERROR(add_calls(group, std::make_shared<const std::vector<Rank>>(members)));
    for (std::size_t from = 0; from < members.size(); ++from)
      for (const Order& order : group.ranks[from].log->orders)
        if (order.direction == Direction::kSend) add_messages(group, members, from, order);
    return {};
  }

  Status add_calls(const GroupEvidence& group, const sim::Members& members) {
    const Order* const first = group.ranks[0].log->order(Direction::kNone);
    if (first == nullptr) return {};
    for (const Operation& one : first->operations) {
      std::vector<const Operation*> all;
      for (const RankEvidence& rank : group.ranks) all.push_back(find(rank.log->order(Direction::kNone), one.number));
      if (!std::all_of(all.begin(), all.end(),
                       [](const Operation* each) { return each != nullptr && has_ended(*each); })) {
        ++job_.left_out;
        continue;
      }
      if (members->size() == 1) continue;
      exec::RequestRecord request = one.request;
      request.phase = exec::Phase::kEqualParts;  // the longest part stands for all
      const std::string label = fmt::format("{} {}", group.name, to_string(request.collective));
      const Result<std::vector<sim::TaskId>> tasks = builder_.call(request, members, stream_, label);
      if (!tasks.ok())
        return tasks.status().with_context(fmt::format("call {} of group \"{}\"", one.number, group.name));
      ++job_.calls;
      for (std::size_t member = 0; member < all.size(); ++member)
        add((*members)[member], recorded((*tasks)[member], *all[member]));
    }
    return {};
  }

  void add_messages(const GroupEvidence& group, const std::vector<Rank>& members, std::size_t from,
                    const Order& sends) {
    const Order* const receives =
        group.ranks[to_size(sends.peer)].log->order(Direction::kReceive, static_cast<Rank>(from));
    for (const Operation& send : sends.operations) {
      const Operation* const receive = find(receives, send.number);
      if (receive == nullptr || !has_ended(send) || !has_ended(*receive)) {
        ++job_.left_out;
        continue;
      }
      const Rank to = members[to_size(sends.peer)];
      const sim::TaskId sent = builder_.add_task(members[from], stream_, fmt::format("{} send", group.name));
      const sim::TaskId received = builder_.add_task(to, stream_, fmt::format("{} recv", group.name));
      builder_.message(sent, received, send.request.count * size_of(send.request.dtype));
      ++job_.calls;
      add(members[from], recorded(sent, send));
      add(to, recorded(received, *receive));
    }
  }

  void add(Rank rank, const Recorded& one) { by_rank_[to_size(rank)].push_back(one); }

  void order_rank(Rank rank) {
    std::vector<Recorded>& all = by_rank_[to_size(rank)];
    if (all.empty()) return;
    std::sort(all.begin(), all.end(), [](const Recorded& a, const Recorded& b) { return a.begin < b.begin; });
    std::vector<Recorded> by_end = all;
    std::sort(by_end.begin(), by_end.end(), [](const Recorded& a, const Recorded& b) { return a.end < b.end; });
    job_.seconds = std::max(job_.seconds, static_cast<double>(by_end.back().end - all.front().begin) * 1e-9);
    std::size_t ended = 0;
    for (const Recorded& one : all) {
      while (ended < by_end.size() && by_end[ended].end <= one.begin && by_end[ended].task != one.task) ++ended;
      const std::int64_t since = ended == 0 ? all.front().begin : by_end[ended - 1].end;
      const sim::TaskId work = builder_.add_task(rank, 0, "between calls");
      builder_.compute(work, static_cast<double>(one.begin - since) * 1e-9);
      if (ended > 0) builder_.after_end(by_end[ended - 1].task, work);
      builder_.after_end(work, one.task);
    }
  }

  const std::vector<GroupEvidence>& groups_;
  sim::ScheduleBuilder builder_;
  std::uint32_t stream_ = 0;                           // of the group; 0 is what ranks do between calls
  std::map<std::pair<std::string, int>, Rank> ranks_;  // by host and process
  std::vector<std::vector<Recorded>> by_rank_;
  RecordedJob job_;
};

}  // namespace

int ranks_of_job(const std::vector<GroupEvidence>& groups) { return static_cast<int>(largest(groups).ranks.size()); }

Result<RecordedJob> rebuild_job(const std::vector<GroupEvidence>& groups, const sim::Machine& machine,
                                const topology::Topology& topology, std::size_t slot_bytes) {
  return JobBuilder(groups, machine, topology, slot_bytes).build();
}

}  // namespace accord::cli
