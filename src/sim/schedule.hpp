#pragma once
// Tasks of ranks, and the tasks that each waits for.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/program.hpp"

namespace accord::sim {

/// A call of a group of ranks.
struct GroupCall {
  std::shared_ptr<const Programs> programs;
  std::shared_ptr<const std::vector<Rank>> members;  ///< by rank of the group; null: all ranks

  std::size_t size() const { return members == nullptr ? programs->programs.size() : members->size(); }
  Rank rank_of(Rank member) const { return members == nullptr ? member : (*members)[static_cast<std::size_t>(member)]; }
};

/// Operations of a rank, one after the other, or its part of a call. Tasks of one stream use one processor.
struct Task {
  Rank rank = 0;
  std::uint32_t stream = 0;
  std::uint32_t label = 0;     ///< of Schedule::labels
  std::uint32_t call = kNone;  ///< number of the call; kNone: operations
  Rank member = 0;             ///< its rank in the call
  std::uint32_t first_op = 0;  ///< of Schedule::ops
  std::uint32_t op_count = 0;
};

/// Tasks that wait for others.
struct Successors {
  std::vector<std::uint32_t> first;  ///< by task, and one more: where its successors begin; empty: there are none
  std::vector<std::uint32_t> tasks;

  std::span<const std::uint32_t> of(std::uint32_t task) const {
    return first.empty() ? std::span<const std::uint32_t>()
                         : std::span(tasks).subspan(first[task], first[task + 1] - first[task]);
  }
};

struct Schedule {
  int ranks = 0;    ///< that are simulated
  int streams = 1;  ///< of each rank
  std::vector<std::string> labels;
  std::vector<GroupCall> calls;
  std::vector<Op> ops;            ///< of tasks that are no calls; lengths are elements
  std::vector<Channel> channels;  ///< of these operations
  std::uint32_t events = 0;       ///< of these operations
  std::vector<Task> tasks;
  Successors after_end;    ///< a task waits until others have ended
  Successors after_begin;  ///< a task waits until others may begin
};

/// All ranks that `programs` has make the call at time 0. The label is that of all tasks.
Schedule schedule_of(std::shared_ptr<const Programs> programs, std::string label);

}  // namespace accord::sim
