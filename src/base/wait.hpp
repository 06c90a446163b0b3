#pragma once
// The one wait policy for another rank: spin, then yield, then sleep, with checks for failures in between.

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"

namespace accord {

/// How eagerly to wait. With more ranks than cores, a waiting rank must give up its core at once. Between hosts each
/// poll queries a fabric, which costs as much as a yield: spinning as often as in shared memory would hold the core
/// for a third of a millisecond.
enum class WaitPolicy : std::uint8_t { kSpin, kSpinBriefly, kYield };

/// Tells a core that it is in a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Paces one wait loop: call pause() after each unsuccessful poll. It returns true every so often (on the first call
/// of the slow half, then at least every millisecond), when the caller should also check for failures and deadlines. A
/// wait of more than 10 ms ends at most a millisecond, and a sixty-fourth of its length, too late.
///
///   Waiter waiter(policy);
///   while (!ready()) if (waiter.pause() && failed()) return ...;
///
/// `poll_cost`: the cost of one poll in pauses; the number of spins is divided by it.
class Waiter {
 public:
  explicit Waiter(WaitPolicy policy, std::uint32_t poll_cost = 1)
      : spins_((policy == WaitPolicy::kSpin          ? kSpins
                : policy == WaitPolicy::kSpinBriefly ? kBriefSpins
                                                     : 0) /
               poll_cost) {}
  bool pause() {
    if (spins_ > 0) [[likely]] {
      --spins_;
      cpu_relax();
      return false;
    }
    return pause_slowly();
  }

 private:
  static constexpr std::uint32_t kSpins = 2000;
  static constexpr std::uint32_t kBriefSpins = 100;
  bool pause_slowly();

  std::uint32_t spins_;
  std::uint32_t yields_ = 0;
  Clock::time_point began_ = {};    ///< the slow half
  Clock::time_point checked_ = {};  ///< when pause() last returned true
};

}  // namespace accord
