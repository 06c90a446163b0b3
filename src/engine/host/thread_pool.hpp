#pragma once
// Fork and join over the parts of a computation. accord has its own so that it does not need OpenMP.

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#include "accord/status.hpp"

namespace accord::engine {

/// `threads` threads that work together: the caller of run(), and threads - 1 workers that sleep between runs.
///
/// One call of run() at a time. The destructor ends the threads. If the system cannot start that many threads, the
/// pool has fewer and logs a warning; results do not depend on how many there are.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls body(part) -> Status, or body(part, thread), once for each part in [0, parts), on whichever thread in
  /// [0, threads()) is free, and returns when all parts are done: ok, or the failure of the lowest failed part. With
  /// one thread or one part, everything runs on the caller. Allocates nothing.
  template <typename Body>
  Status run(int parts, const Body& body) {
    const Call call = [](const void* context, int part, [[maybe_unused]] int thread) {
      const Body& function = *static_cast<const Body*>(context);
      if constexpr (std::is_invocable_v<const Body&, int, int>) {
        return function(part, thread);
      } else {
        return function(part);
      }
    };
    return run_parts(parts, call, &body);
  }

 private:
  using Call = Status (*)(const void* context, int part, int thread);
  Status run_parts(int parts, Call call, const void* context);
  void work(int thread);
  void process_parts(int thread);
  void record(int part, Status status);

  Call call_ = nullptr;
  const void* context_ = nullptr;
  int parts_ = 0;
  std::atomic<int> next_part_{0};
  std::atomic<std::uint32_t> round_{0};  // counts runs; workers sleep on it
  std::atomic<int> busy_{0};             // workers that have not finished this round
  std::atomic<bool> stop_{false};
  std::atomic_flag recording_ = ATOMIC_FLAG_INIT;
  int failed_part_ = 0;
  Status failure_;
  std::vector<std::thread> workers_;
};

/// Part `part` of `parts` of [0, count), cut at multiples of `grain`: [first, last).
struct PartRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
PartRange part_range(std::int64_t count, std::int64_t grain, int part, int parts);

}  // namespace accord::engine
