#pragma once
// What an EngineContext handle holds: the arena and the prepared programs of one user of an engine.

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "accord/engine.hpp"
#include "engine/runtime/loaded_engine.hpp"
#include "engine/runtime/program.hpp"
#include "engine/runtime/region.hpp"
#include "engine/runtime/thread_pool.hpp"

namespace accord::engine {

/// One run at a time; a second one that comes meanwhile is refused with kWrongState.
class RunContext {
 public:
  explicit RunContext(std::shared_ptr<LoadedEngine> engine);

  Result<std::vector<TensorView>> run(std::span<const TensorView> inputs);
  void set_profiling(Profiling profiling) { profiling_ = profiling; }
  std::vector<OpTime> profile() const;
  std::size_t arena_bytes() const { return arena_.size(); }

 private:
  struct CachedProgram {
    std::vector<std::int64_t> key;  // all dimensions of all inputs, one after the other
    Program program;
  };
  struct TimeOfOp {
    std::uint64_t calls = 0;
    double seconds = 0;
  };

  Result<std::vector<TensorView>> run_bound(std::span<const TensorView> inputs);
  void release_peers(const Status& failure);
  Result<Program*> find_program(std::span<const TensorView> inputs);
  Status place_arena(Program& program);
  Status run_steps(Program& program);
  Status run_steps_timed(Program& program, const Execution& execution);

  static constexpr std::size_t kMostPrograms = 32;

  std::shared_ptr<LoadedEngine> engine_;
  ThreadPool pool_;
  Region arena_;
  std::vector<Region> outgrown_;       // arenas before this one, cleared: callers may still look at outputs there
  std::list<CachedProgram> programs_;  // the most recently used first
  std::vector<std::int64_t> key_;      // of the inputs at hand
  Profiling profiling_ = Profiling::kOff;
  std::map<std::string, TimeOfOp> times_;
  std::atomic<bool> busy_{false};
};

}  // namespace accord::engine
