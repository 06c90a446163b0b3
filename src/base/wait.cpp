// Spinning costs nothing while the peer runs on another core. Yielding gives the core to a peer that has none. After
// some thousand yields the wait is long, and short sleeps leave the core to others (a futex wake costs 25 us across
// cores; a 50 us sleep costs no more and needs no notification from the peer).
#include "base/wait.hpp"

#include <sched.h>

#include <thread>

namespace accord {
namespace {
constexpr std::uint32_t kYields = 20000;
constexpr std::uint32_t kCheckEvery = 64;
constexpr auto kCheckInterval = std::chrono::milliseconds(1);
constexpr auto kNap = std::chrono::microseconds(50);
}  // namespace

bool Waiter::pause_slowly() {
  ++yields_;
  if (yields_ < kYields) {
    sched_yield();
    // Beside threads that compute, each yield may last as long as their time slice.
    const auto now = Clock::now();
    if (yields_ % kCheckEvery != 1 && now - checked_ < kCheckInterval) return false;
    checked_ = now;
    return true;
  }
  std::this_thread::sleep_for(kNap);
  return true;
}

}  // namespace accord
