#pragma once
// The one way of waiting for another rank: spin, then yield, then sleep; and look after failures on the way.

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"

namespace accord {

/// How eagerly to wait. With more ranks than cores a waiting rank must give its core away at once.
enum class WaitPolicy : std::uint8_t { kSpin, kYield };

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
class Waiter {
 public:
  explicit Waiter(WaitPolicy policy) : policy_(policy) {}
  bool pause() {
    ++rounds_;
    if (policy_ == WaitPolicy::kSpin && rounds_ <= kSpins) [[likely]] {
      cpu_relax();
      return false;
    }
    return pause_slowly();
  }

 private:
  static constexpr std::uint32_t kSpins = 2000;
  bool pause_slowly();

  WaitPolicy policy_;
  std::uint32_t rounds_ = 0;
  std::uint32_t yields_ = 0;
};

}  // namespace accord
