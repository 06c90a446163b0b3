#pragma once
// The times of a context's steps, as its profiling asks for them.

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"

namespace accord::engine {

/// A step of a run, or a whole run, in nanoseconds of this host's monotonic clock.
struct StepTime {
  const Node* node = nullptr;  ///< of the engine's graph; nullptr for the copy of an output
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// The times recorded by Profiling::kTrace.
struct RecordedRuns {
  std::vector<StepTime> steps;
  std::vector<StepTime> runs;
  bool truncated = false;  ///< there was more than is kept
};

/// One thread records; any thread may set the profiling and read the totals.
class RunTimes {
 public:
  void set_profiling(Profiling profiling) { profiling_.store(profiling, std::memory_order_relaxed); }
  Profiling profiling() const { return profiling_.load(std::memory_order_relaxed); }
  /// `profiling`: what it was when the run began.
  void add_step(Profiling profiling, const StepTime& step);
  void add_run(Profiling profiling, std::int64_t begin_ns, std::int64_t end_ns);
  /// REQUIRES: no run is under way.
  const RecordedRuns& recorded() const { return recorded_; }
  /// The total time of each op, longest first.
  std::vector<OpTime> totals() const;

 private:
  struct OpTotals {
    std::uint64_t calls = 0;
    double seconds = 0;
  };

  std::atomic<Profiling> profiling_{Profiling::kOff};
  mutable std::mutex mutex_;
  std::map<std::string, OpTotals> totals_;  ///< guarded by mutex_
  RecordedRuns recorded_;
};

}  // namespace accord::engine
