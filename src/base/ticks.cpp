// Before the kernel uses x86's time stamp counter as its own clock source, it checks that the counter runs at a
// constant rate, does not stop and is equal on all cores. If the kernel has chosen another source, calls are timed by
// that one.
#include "base/ticks.hpp"

#include <string>

#include "base/fd.hpp"

namespace accord {
namespace {

TickSource find_source() {
#if defined(__aarch64__)
  return TickSource::kCounter;
#else
  const Result<std::string> source = read_file("/sys/devices/system/clocksource/clocksource0/current_clocksource", 64);
  return source.ok() && *source == "tsc\n" ? TickSource::kCounter : TickSource::kMonotonic;
#endif
}

}  // namespace

TickSource tick_source() {
  static const TickSource source = find_source();
  return source;
}

Moment moment_now(TickSource source) {
  constexpr int kTries = 8;
  Moment best;
  std::uint64_t shortest = UINT64_MAX;
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t before = ticks_now(source);
    const std::int64_t monotonic = Clock::now().time_since_epoch().count();
    const std::uint64_t after = ticks_now(source);
    const std::int64_t unix_time = std::chrono::system_clock::now().time_since_epoch().count();
    if (after - before >= shortest) continue;  // interrupted between the two
    shortest = after - before;
    best = {.ticks = before + shortest / 2, .monotonic_ns = monotonic, .unix_ns = unix_time};
  }
  return best;
}

std::int64_t monotonic_of(std::uint64_t ticks, const Moment& first, const Moment& second) {
  const auto offset = static_cast<double>(static_cast<std::int64_t>(ticks - first.ticks));
  const auto span = static_cast<double>(static_cast<std::int64_t>(second.ticks - first.ticks));
  if (span <= 0) return first.monotonic_ns;
  const auto nanoseconds = static_cast<double>(second.monotonic_ns - first.monotonic_ns);
  return first.monotonic_ns + static_cast<std::int64_t>(offset * (nanoseconds / span));
}

}  // namespace accord
