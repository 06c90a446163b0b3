#pragma once
// A clock that is cheap enough for every call: ticks, which are turned into nanoseconds when somebody reads them.

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "base/clock.hpp"

namespace accord {

/// What a tick is.
enum class TickSource : std::uint32_t {
  kMonotonic,  ///< a nanosecond of Clock
  kCounter,    ///< a step of the processor's counter, which runs at one speed on all cores of the host
};

/// The counter where the kernel trusts it for its own clock, else kMonotonic.
TickSource tick_source();

/// Ticks now: about 10 ns by the counter, 25 ns by the clock. Never 0. `source`: of tick_source(), kept by the caller.
inline std::uint64_t ticks_now(TickSource source) {
#if defined(__x86_64__)
  if (source == TickSource::kCounter) [[likely]]
    return __rdtsc();
#elif defined(__aarch64__)
  if (source == TickSource::kCounter) [[likely]] {
    std::uint64_t ticks;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
  }
#endif
  return static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
}

/// The same moment on three clocks.
struct Moment {
  std::uint64_t ticks = 0;
  std::int64_t monotonic_ns = 0;  ///< Clock: one for all processes of a host
  std::int64_t unix_ns = 0;       ///< since 1970, as far as the host's clock is right
};
Moment moment_now(TickSource source);

/// Nanoseconds of Clock for `ticks`, by the line through two moments. Exact to the time that a look at the clock takes.
std::int64_t monotonic_of(std::uint64_t ticks, const Moment& first, const Moment& second);

}  // namespace accord
