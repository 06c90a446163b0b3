#pragma once
// Builds a schedule task by task.

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "accord/status.hpp"
#include "exec/request_record.hpp"
#include "plan/selector.hpp"
#include "sim/machine.hpp"
#include "sim/schedule.hpp"

namespace accord::sim {

using TaskId = std::uint32_t;
using Members = std::shared_ptr<const std::vector<Rank>>;

class ScheduleBuilder {
 public:
  /// `slot_bytes`: the scratch of calls for which the selection table has no other. The machine and the topology must
  /// outlive the builder.
  ScheduleBuilder(const Machine& machine, const topology::Topology& topology, std::size_t slot_bytes);

  /// A task without operations.
  TaskId add_task(Rank rank, std::uint32_t stream, std::string_view label);
  /// Lets a task compute. It must be the last task that got operations, or have none.
  void compute(TaskId task, double seconds);
  /// Lets `sent` send bytes to the rank of `received`: over the network, or through the memory of their host. Both have
  /// no operations yet.
  void message(TaskId sent, TaskId received, std::uint64_t bytes);
  /// Returns the tasks of a call, by member. It runs the algorithm that a communicator of these ranks would select.
  Result<std::vector<TaskId>> call(const exec::RequestRecord& request, const Members& members, std::uint32_t stream,
                                   std::string_view label);

  /// `task` begins when `before` has ended, or when it may begin.
  void after_end(TaskId before, TaskId task) { after_end_.push_back({before, task}); }
  void after_begin(TaskId before, TaskId task) { after_begin_.push_back({before, task}); }

  Schedule take() &&;

 private:
  struct Edge {
    TaskId before = 0, task = 0;
  };
  // The call, its size, and the hosts of the members, numbered from 0: groups for which they are equal run the same
  // programs.
  using ProgramsKey = std::tuple<Collective, DType, ReduceOp, Rank, std::uint64_t, std::vector<int>>;

  Result<std::shared_ptr<const Programs>> programs_of_call(const exec::RequestRecord& request,
                                                           const std::vector<Rank>& members);
  void add_op(TaskId task, const Op& op);
  std::uint32_t channel_between(Rank from, Rank to);
  std::uint32_t number_of(std::string_view label);
  Successors successors_of(std::vector<Edge>& edges) const;

  const Machine& machine_;
  const topology::Topology& topology_;
  std::size_t slot_bytes_;
  Result<plan::Selector> selector_;
  Schedule schedule_;
  std::vector<Edge> after_end_, after_begin_;
  std::map<std::string, std::uint32_t, std::less<>> labels_;
  std::unordered_map<std::uint64_t, std::uint32_t> channels_;  // by ranks
  std::map<ProgramsKey, std::shared_ptr<const Programs>> programs_;
};

}  // namespace accord::sim
