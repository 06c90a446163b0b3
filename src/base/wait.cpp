// Spinning costs nothing while the peer runs on another core; yielding gives the core to a peer that has none; after
// some thousand yields the wait is long and short sleeps leave the core to others (a futex wake costs 25 us across
// cores, a sleep of 50 us no more, and needs no word from the peer).
#include "base/wait.hpp"

#include <sched.h>

#include <thread>

namespace accord {
namespace {
constexpr std::uint32_t kYields = 20000;
constexpr std::uint32_t kLookEvery = 64;
constexpr auto kNap = std::chrono::microseconds(50);
}  // namespace

bool Waiter::pause_slowly() {
  ++yields_;
  if (yields_ < kYields) {
    sched_yield();
    return yields_ % kLookEvery == 1;
  }
  std::this_thread::sleep_for(kNap);
  return true;
}

}  // namespace accord
