#pragma once
// How the threads of a kernel's blocks meet on the host, and in which order they run between meetings.

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

/// Whether threads of a block run one at a time (HostTurns). Under ThreadSanitizer they run beside each other, as it finds what a kernel does not
/// order itself, which turns would hide from it.
inline constexpr bool kTakeTurns = !kThreadSanitizer;

/// Runs the threads of a block one at a time, so that a meeting which a kernel lacks shows as a wrong result: whoever may run goes as far ahead of the
/// others as their meetings allow. Of the threads that can go on it is the first one's turn, in an order of warps, and of lanes in them, that is
/// shuffled when all meet; the orders are the same in every run. All of them are fibers of one thread.
class HostTurns {
 public:
  HostTurns(int threads, int lanes);
  /// Does the work of every thread; returns when all have ended. Aborts if some are left that nobody can resume.
  void run(const std::function<void(int thread)>& work);

  /// By a thread in its work: waits until it has been resumed and it is its turn.
  void stop(int thread);
  void resume(int thread);
  /// Returns when it is the thread's turn.
  void go_on(int thread);
  /// The same, when others have had theirs.
  void give_way(int thread);
  /// Makes the next order.
  void shuffle();
  int threads() const { return static_cast<int>(is_ready_.size()); }

 private:
  static constexpr int kNobody = -1;
  HostFiber& fiber(int thread) { return fibers_[static_cast<std::size_t>(thread)]; }
  int next() const;

  const int lanes_;
  std::vector<bool> is_ready_;  ///< each thread
  std::deque<HostFiber> fibers_;
  std::vector<int> order_;
  std::minstd_rand random_;
};

/// What the threads of a block, or of a warp, meet at, and where they show each other values.
class HostTeam {
  struct Shown {
    std::byte bytes[32];
  };
  using Row = std::vector<Shown>;

 public:
  /// Of a block's threads, those from `first` on. `turns`: the block's; null if its threads run beside each other.
  HostTeam(int threads, int first, HostTurns* turns);
  /// `me`: the thread's number in this team.
  void meet(int me);
  /// In a loop that waits for others.
  void pause(int me);
  /// Every thread shows a value, and has those of all, in the order of the threads, until it shows another.
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
    const Shown* row_;
  };
  template <typename T>
  All<T> show(int me, const T& x) {
    // Two rows in turn: a thread that writes into one again has met all others since they read it.
    Row& row = shown_[times_[static_cast<std::size_t>(me)]++ % 2];
    static_assert(sizeof(T) <= sizeof(Shown));
    std::memcpy(row[static_cast<std::size_t>(me)].bytes, &x, sizeof(T));
    meet(me);
    return All<T>(row);
  }
  /// What combine() makes of the values of all, in the order of the threads.
  template <typename T, typename Combine>
  T combine(int me, T x, Combine combine) {
    const All<T> its = show(me, x);
    T all = its[0];
    for (int i = 1; i < static_cast<int>(times_.size()); ++i) all = combine(all, its[i]);
    return all;
  }

 private:
  const int threads_, first_;
  HostTurns* const turns_;
  int arrived_ = 0;                 ///< at the next meeting, of threads that take turns
  std::barrier<> barrier_;          ///< of others
  std::vector<std::size_t> times_;  ///< how often each thread has shown
  std::vector<Row> shown_;
};

}  // namespace accord::testing
