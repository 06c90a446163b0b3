#pragma once
// One run as a value: what its ranks do, and what happens to them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "simulation/scheduler.hpp"

namespace accord::simulation {

/// Steps that all ranks take together.
enum class StepKind : std::uint8_t {
  kBarrier,
  kAllReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kRing,         ///< each rank sends to the next one and receives from the one before
  kStarted,      ///< three calls that are in progress at once
  kThreads,      ///< two threads of each rank call at the same time
  kWindow,       ///< a window, and an all_reduce in it without copies
  kSplit,        ///< two halves, each with an all_reduce
  kShrink,       ///< of a group in which nobody failed
  kGrow,         ///< by one process, which is started then
  kMismatch,     ///< one rank passes another count than the others
  kReconfigure,  ///< all ranks form a new group by their handles
};
inline constexpr int kStepKinds = 15;
std::string_view to_string(StepKind kind);

struct Step {
  StepKind kind = StepKind::kBarrier;
  std::uint64_t count = 1;  ///< elements of 8 bytes
};

enum class FaultKind : std::uint8_t {
  kKill,
  kPause,
  kAbort,  ///< another thread of the rank aborts its communicator
};
std::string_view to_string(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kKill;
  int rank = 0;            ///< of the first group; processes that join it follow in the order of their start
  std::uint64_t step = 0;  ///< of the scheduler, counted for this process
  Time duration = 0;       ///< of a pause
};

struct Scenario {
  std::uint64_t seed = 0;  ///< of the order of steps and of how long they take
  int ranks = 2;
  Time timeout = kSecond;         ///< of each call
  Time shrink_timeout = kSecond;  ///< of shrink()
  std::vector<Step> steps;
  std::vector<Fault> faults;

  bool has(FaultKind kind) const;
  /// Makes the timeouts long if no rank pauses, so that ranks whose threads wake up late are in time.
  void forgive_wake_ups();
};

struct Limits {
  int min_ranks = 2;
  int max_ranks = 8;
};
/// The scenario that a seed stands for.
Scenario scenario_of(std::uint64_t seed, const Limits& limits = {});

std::string to_json(const Scenario& scenario);
/// Fails with kCorrupt if the text is not a scenario.
Result<Scenario> scenario_from_json(std::string_view text);

}  // namespace accord::simulation
