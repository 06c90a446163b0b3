#pragma once
// GOAL, a text format for what the ranks of a parallel program do: computations, messages, and the order in which they
// happen ("Group Operation Assembly Language", Hoefler, Siebert and Lumsdaine 2009; the dialect of LogGOPSim):
//
//   num_ranks 2
//   rank 0 {
//     work: calc 500 cpu 0         // nanoseconds; streams of a rank, 0 if none is given
//     data: send 4096b to 1 tag 7
//     data requires work           // begins when the other one has ended; irequires: when it has begun
//   }
//   rank 1 {
//     recv 4096b from 0 tag 7
//   }

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/schedule.hpp"

namespace accord::sim {

enum class GoalKind : std::uint8_t { kCompute, kSend, kReceive };

struct GoalTask {
  GoalKind kind = GoalKind::kCompute;
  Rank rank = 0;
  Rank peer = -1;            ///< kSend, kReceive
  std::uint32_t tag = 0;     ///< kSend, kReceive
  std::uint32_t stream = 0;  ///< "cpu"
  std::uint64_t amount = 0;  ///< nanoseconds or bytes
};

/// `task` waits for `before`; both are numbers of tasks.
struct GoalEdge {
  std::uint32_t before = 0;
  std::uint32_t task = 0;
};

struct Goal {
  int ranks = 0;
  std::vector<GoalTask> tasks;  ///< of one rank after the other
  std::vector<GoalEdge> after_end;
  std::vector<GoalEdge> after_begin;
};

/// Fails with kInvalidArgument, which names the line: what is no GOAL, a label twice or unknown, ranks that do not
/// exist. Receives from any rank or of any tag are kUnsupported.
Result<Goal> parse_goal(std::string_view text);

std::string goal_text(const Goal& goal);

/// The schedule of these tasks. The k-th send of a rank to another one with a tag matches the k-th receive. Costs are
/// those of messages between hosts, or of data that one rank writes for another one of its host. Fails with
/// kInvalidArgument for a send or receive without a match, and for one that receives less than was sent.
Result<Schedule> schedule_of(const Goal& goal, const Machine& machine, const topology::Topology& topology);

/// The tasks of the ranks of a call, in all rounds and calls: messages, and the time of copies and reductions on the
/// machine. Lanes become streams. A rank may be further ahead of others than rounds in flight allow. REQUIRES:
/// programs of all ranks. Fails with kUnsupported if there are too many.
Result<Goal> goal_of(const Programs& programs);

}  // namespace accord::sim
