#pragma once
// How the threads of a kernel's blocks meet (synchronize) on the host, and the order in which they run between
// meetings.

#include <barrier>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <vector>

#include "device/host_fiber.hpp"
#include "sanitized.hpp"

namespace accord::testing {

/// Whether the threads of a block run one at a time (HostTurns). Under ThreadSanitizer they run in parallel: it finds
/// the accesses that a kernel leaves unordered, which turns would hide.
inline constexpr bool kTakeTurns = !kThreadSanitizer;

/// Runs the threads of a block one at a time, so that a synchronization that a kernel lacks shows as a wrong result:
/// the running thread gets as far ahead of the others as their meetings allow. The turn goes to the first thread that
/// can continue, in an order of warps, and of lanes within them, that is shuffled whenever all threads meet. The
/// orders are the same in every run. All threads of the block are fibers of one thread. Threads can be stopped at a
/// gate: there a kernel that has started early waits for the one before it.
class HostTurns {
 public:
  HostTurns(int threads, int lanes);
  /// Begins the work of every thread and returns when no thread can continue: all have ended, or wait at the gate, or
  /// for one that does.
  void begin(std::function<void(int thread)> work);
  /// Opens the gate and returns when all threads have ended. Aborts if threads are left that no other thread can
  /// resume.
  void finish();
  /// Called by a thread in its work: waits until finish() has been called.
  void wait_at_gate(int thread);

  /// Called by a thread in its work: waits until it has been resumed and has the turn.
  void stop(int thread);
  void resume(int thread);
  /// Returns when the thread has the turn.
  void wait_for_turn(int thread);
  /// Returns when the thread has the turn again, after the other threads.
  void yield_turn(int thread);
  /// Draws the next order.
  void shuffle();
  int threads() const { return static_cast<int>(is_ready_.size()); }

 private:
  static constexpr int kNoThread = -1;
  HostFiber& fiber(int thread) { return fibers_[static_cast<std::size_t>(thread)]; }
  int next() const;
  /// Lets threads run until none can continue. Returns how many have not ended.
  int advance();

  const int lanes_;
  std::function<void(int thread)> work_;
  bool gate_is_open_ = false;
  std::vector<int> at_gate_;
  std::vector<bool> is_ready_;  ///< by thread
  int ended_ = 0;
  std::deque<HostFiber> fibers_;
  std::vector<int> order_;
  std::minstd_rand random_;
};

/// A place where the threads of a block or a warp meet and exchange values.
class HostTeam {
  struct Slot {
    std::byte bytes[32];
  };
  using Row = std::vector<Slot>;

 public:
  /// Creates the team of `threads` threads of a block, from number `first` on. `turns`: the block's; null if its
  /// threads run in parallel.
  HostTeam(int threads, int first, HostTurns* turns);
  /// Waits for all threads of the team. `me`: the thread's number in this team.
  void sync(int me);
  /// For loops that wait for other threads: lets them run.
  void pause(int me);
  /// The values that all threads have shown, in the order of the threads. Valid until the thread shows another value.
  template <typename T>
  class All {
   public:
    T operator[](int thread) const {
      T x;
      std::memcpy(&x, row_[static_cast<std::size_t>(thread)].bytes, sizeof(T));
      return x;
    }

   private:
    friend class HostTeam;
    explicit All(const Row& row) : row_(row.data()) {}
    const Slot* row_;
  };
  template <typename T>
  All<T> exchange(int me, const T& x) {
    // Two rows alternate: a thread that writes to a row again has met all others since they read it.
    Row& row = slots_[times_[static_cast<std::size_t>(me)]++ % 2];
    static_assert(sizeof(T) <= sizeof(Slot));
    std::memcpy(row[static_cast<std::size_t>(me)].bytes, &x, sizeof(T));
    sync(me);
    return All<T>(row);
  }
  /// Returns the values of all threads, combined in the order of the threads.
  template <typename T, typename Combine>
  T combine(int me, T x, Combine combine) {
    const All<T> values = exchange(me, x);
    T all = values[0];
    for (int i = 1; i < static_cast<int>(times_.size()); ++i) all = combine(all, values[i]);
    return all;
  }

 private:
  const int threads_, first_;
  HostTurns* const turns_;
  int arrived_ = 0;                 ///< at the next meeting, if threads take turns
  std::barrier<> barrier_;          ///< if threads run in parallel
  std::vector<std::size_t> times_;  ///< values that each thread has shown
  std::vector<Row> slots_;
};

}  // namespace accord::testing
