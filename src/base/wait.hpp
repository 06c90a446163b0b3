#pragma once
// The one way of waiting for another rank: spin, then yield, then sleep; and look after failures on the way.

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"

namespace accord {

/// How eagerly to wait. With more ranks than cores a waiting rank must give its core away at once. Between hosts each look polls a fabric,
/// which costs as much as a yield: spinning as often as in shared memory would keep the core for a third of a millisecond.
enum class WaitPolicy : std::uint8_t { kSpin, kSpinBriefly, kYield };

/// Tells a core that it is in a spin loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Paces one wait loop: call pause() after each look in vain. It gives true every so often (about each 50 us once the
/// wait is long, on the first call of the slow half) when the caller should also look for failures and deadlines.
///
///   Waiter waiter(policy);
///   while (!ready()) if (waiter.pause() && failed()) return ...;
///
/// `looks`: how many pauses a look takes by itself; the spins are that much fewer.
class Waiter {
 public:
  explicit Waiter(WaitPolicy policy, std::uint32_t looks = 1)
      : spins_((policy == WaitPolicy::kSpin          ? kSpins
                : policy == WaitPolicy::kSpinBriefly ? kBriefSpins
                                                     : 0) /
               looks) {}
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
};

}  // namespace accord
