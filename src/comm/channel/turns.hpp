#pragma once
// The turn to use a channel, and the number of operations that wait for it.

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/heavy_fence.hpp"

namespace accord::comm {

/// One thread at a time has the turn. A thread that finds no other before it takes the turn; others queue up, and the
/// turn passes along the queue.
///
/// Thread-safe. The first thread has the fast half (take and give back) to itself until a second one arrives, and
/// uses plain loads and stores; from then on all threads use atomic operations. A locked instruction is cheap by
/// itself, but waits until the stores before it have left the core, and stores to lines of another core take longer
/// than all the rest of a small call. Writes of a thread before it gives the turn back are visible to the next thread
/// that has it. Cost: a few ns; microseconds once, when the second thread arrives.
class Turns {
 public:
  Turns() : owner_(has_heavy_fence() ? kNobody : kShared) {}

  /// Takes the turn, unless another has it or waits for it. `more`: kCall or kNoCall.
  bool try_acquire(std::uint64_t more) {
    if (alone()) [[likely]] {
      const std::uint64_t works = works_.load(std::memory_order_acquire);
      const bool free = waiting(works) == 0;
      if (free) works_.store(works + more, std::memory_order_release);
      changing_.store(false, std::memory_order_release);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // loads that fence() orders come after this
      return free;
    }
    std::uint64_t works = works_.load(std::memory_order_relaxed);
    do {
      if (waiting(works) != 0) return false;
    } while (!works_.compare_exchange_weak(works, works + more, std::memory_order_seq_cst));
    return true;
  }
  /// Returns the number of a call that is made after all, after the turn was taken with kNoCall.
  std::uint64_t count_call() {
    return (works_.fetch_add(std::uint64_t{1} << kWaitingBits, std::memory_order_acq_rel) >> kWaitingBits) + 1;
  }
  /// Called by the thread that took the turn: gives it back. Returns true if another waits for it.
  bool release() {
    if (alone()) [[likely]] {
      const std::uint64_t works = works_.load(std::memory_order_acquire);
      works_.store(works - 1, std::memory_order_release);
      changing_.store(false, std::memory_order_release);
      return waiting(works) > 1;
    }
    return waiting(works_.fetch_sub(1, std::memory_order_acq_rel)) > 1;
  }

  struct Place {
    std::uint64_t number = 0;  ///< of the call, counted from 1
    std::uint64_t before = 0;  ///< operations that have the turn or wait for it; 0: the caller has it now
  };
  /// Queues a call.
  Place queue() {
    if (const std::uintptr_t me = this_thread(); owner_.load(std::memory_order_relaxed) != me) becomes_owner(me);
    const std::uint64_t works = works_.fetch_add(kCall, std::memory_order_seq_cst);
    return {.number = (works >> kWaitingBits) + 1, .before = waiting(works)};
  }
  /// Ends the turn of a queued operation. Returns false if none waits.
  bool next() { return waiting(works_.fetch_sub(1, std::memory_order_acq_rel)) > 1; }

  /// True while nobody has the turn. REQUIRES, for a thread that has published a request by a store and waits until
  /// no thread is left that has not seen it: fence() between the store and this.
  bool idle() const { return waiting(works_.load(std::memory_order_seq_cst)) == 0; }
  static void fence() {
    if (has_heavy_fence()) heavy_fence();
  }

  static constexpr int kWaitingBits = 24;
  static constexpr std::uint64_t kNoCall = 1;
  static constexpr std::uint64_t kCall = (std::uint64_t{1} << kWaitingBits) + 1;

 private:
  static constexpr std::uintptr_t kNobody = 0;
  static constexpr std::uintptr_t kBecomingShared = 1;
  static constexpr std::uintptr_t kShared = 2;

  static std::uint64_t waiting(std::uint64_t works) { return works & ((std::uint64_t{1} << kWaitingBits) - 1); }
  /// Different for each living thread.
  static std::uintptr_t this_thread() { return reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer()); }

  /// Returns true, with changing_ set, if this thread alone may take and give back as long as changing_ is set.
  bool alone() {
    const std::uintptr_t me = this_thread();
    if (owner_.load(std::memory_order_relaxed) != me && !becomes_owner(me)) return false;
    changing_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the matching heavy fence is in share()
    if (owner_.load(std::memory_order_relaxed) == me) [[likely]]
      return true;
    changing_.store(false, std::memory_order_release);
    return false;
  }
  bool becomes_owner(std::uintptr_t me) {
    std::uintptr_t owner = owner_.load(std::memory_order_acquire);
    if (owner == kShared) return false;
    if (owner == kNobody && owner_.compare_exchange_strong(owner, me, std::memory_order_acq_rel)) return true;
    share();
    return false;
  }
  /// Once it returns, no thread is alone.
  void share() {
    if (owner_.load(std::memory_order_acquire) == kShared) return;
    owner_.store(kBecomingShared, std::memory_order_seq_cst);
    heavy_fence();  // from here on the owner sees that; it may have begun before
    while (changing_.load(std::memory_order_acquire)) std::this_thread::yield();
    owner_.store(kShared, std::memory_order_release);
  }

  /// Two numbers: the low bits count the operations that have the turn or wait for it, the high bits all calls so
  /// far.
  std::atomic<std::uint64_t> works_ = 0;
  std::atomic<std::uintptr_t> owner_;
  std::atomic<bool> changing_ = false;
};

}  // namespace accord::comm
