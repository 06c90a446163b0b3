#pragma once
// A clock cheap enough for every call. It counts ticks, which are converted to nanoseconds when they are read.

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "base/clock.hpp"

namespace accord {

/// The unit of a tick.
enum class TickSource : std::uint32_t {
  kMonotonic,  ///< one nanosecond of Clock
  kCounter,    ///< one step of the processor's counter, which runs at the same rate on all cores of the host
};

/// kCounter if the kernel trusts the counter for its own clock, else kMonotonic.
TickSource tick_source();

/// The current tick: about 10 ns with the counter, 25 ns with the clock. Never 0. `source`: the result of
/// tick_source(), kept by the caller.
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

/// One moment on three clocks.
struct Moment {
  std::uint64_t ticks = 0;
  std::int64_t monotonic_ns = 0;  ///< Clock, shared by all processes of a host
  std::int64_t unix_ns = 0;       ///< since 1970, as accurate as the host's clock
};
Moment moment_now(TickSource source);

/// Converts `ticks` to nanoseconds of Clock by the line through two moments. Accurate to the time of one clock read.
std::int64_t monotonic_of(std::uint64_t ticks, const Moment& first, const Moment& second);

}  // namespace accord
