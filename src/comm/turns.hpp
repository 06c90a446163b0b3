#pragma once
// Whose turn it is on a channel, and how many wait for theirs.

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/heavy_fence.hpp"

namespace accord::comm {

/// One at a time has the turn: who finds nobody before it takes it, others queue up, and the turn goes through the queue.
///
/// Thread-safe. The first thread that comes has the fast half (take and give back) to itself until another one comes, and does it by
/// plain loads and stores; from then on all use atomic operations. A locked instruction is cheap by itself, but waits until the
/// stores before it have left the core, and those that go to another core take longer than all the rest of a small call. What one
/// thread wrote before it gave the turn back, the next one to have it reads. Cost: some ns; once, when the second thread comes,
/// microseconds.
class Turns {
 public:
  Turns() : owner_(has_heavy_fence() ? kNobody : kEverybody) {}

  /// Takes the turn, unless somebody has it or waits for it. `more`: kCall, or kNoCall.
  bool take(std::uint64_t more) {
    if (alone()) [[likely]] {
      const std::uint64_t works = works_.load(std::memory_order_acquire);
      const bool free = waiting(works) == 0;
      if (free) works_.store(works + more, std::memory_order_release);
      changing_.store(false, std::memory_order_release);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // what settle() orders is looked at after this
      return free;
    }
    std::uint64_t works = works_.load(std::memory_order_relaxed);
    do {
      if (waiting(works) != 0) return false;
    } while (!works_.compare_exchange_weak(works, works + more, std::memory_order_seq_cst));
    return true;
  }
  /// Who took the turn by kNoCall makes a call after all: its number.
  std::uint64_t count_call() {
    return (works_.fetch_add(std::uint64_t{1} << kWaitingBits, std::memory_order_acq_rel) >> kWaitingBits) + 1;
  }
  /// The thread that took it gives it back; true if somebody waits for it.
  bool give_back() {
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
    std::uint64_t before = 0;  ///< who has the turn or waits for it; 0: the caller has it now
  };
  /// Queues a call up.
  Place queue() {
    if (const std::uintptr_t me = this_thread(); owner_.load(std::memory_order_relaxed) != me) becomes_owner(me);
    const std::uint64_t works = works_.fetch_add(kCall, std::memory_order_seq_cst);
    return {.number = (works >> kWaitingBits) + 1, .before = waiting(works)};
  }
  /// One that was queued up has had its turn; false if none waits.
  bool next() { return waiting(works_.fetch_sub(1, std::memory_order_acq_rel)) > 1; }

  /// True while nobody has the turn. REQUIRES, for one that has told its wish by a store and waits until nobody is left who has not
  /// seen that: settle() between the store and this.
  bool idle() const { return waiting(works_.load(std::memory_order_seq_cst)) == 0; }
  static void settle() {
    if (has_heavy_fence()) heavy_fence();
  }

  static constexpr int kWaitingBits = 24;
  static constexpr std::uint64_t kNoCall = 1;
  static constexpr std::uint64_t kCall = (std::uint64_t{1} << kWaitingBits) + 1;

 private:
  static constexpr std::uintptr_t kNobody = 0;
  static constexpr std::uintptr_t kEverybodySoon = 1;
  static constexpr std::uintptr_t kEverybody = 2;

  static std::uint64_t waiting(std::uint64_t works) { return works & ((std::uint64_t{1} << kWaitingBits) - 1); }
  /// Another one for each thread that lives.
  static std::uintptr_t this_thread() { return reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer()); }

  /// True if this thread alone may take and give back, for as long as changing_ is set, which it is then.
  bool alone() {
    const std::uintptr_t me = this_thread();
    if (owner_.load(std::memory_order_relaxed) != me && !becomes_owner(me)) return false;
    changing_.store(true, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // a heavy one is in share()
    if (owner_.load(std::memory_order_relaxed) == me) [[likely]]
      return true;
    changing_.store(false, std::memory_order_release);
    return false;
  }
  bool becomes_owner(std::uintptr_t me) {
    std::uintptr_t owner = owner_.load(std::memory_order_acquire);
    if (owner == kEverybody) return false;
    if (owner == kNobody && owner_.compare_exchange_strong(owner, me, std::memory_order_acq_rel)) return true;
    share();
    return false;
  }
  /// From its end on nobody is alone.
  void share() {
    if (owner_.load(std::memory_order_acquire) == kEverybody) return;
    owner_.store(kEverybodySoon, std::memory_order_seq_cst);
    heavy_fence();  // from here on the owner sees that; it may have begun before
    while (changing_.load(std::memory_order_acquire)) std::this_thread::yield();
    owner_.store(kEverybody, std::memory_order_release);
  }

  /// Two numbers: how many have the turn or wait for it in its low bits, how many calls there ever were above.
  std::atomic<std::uint64_t> works_ = 0;
  std::atomic<std::uintptr_t> owner_;
  std::atomic<bool> changing_ = false;
};

}  // namespace accord::comm
