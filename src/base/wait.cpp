// Spinning costs nothing while the peer runs on another core. Yielding gives the core to a peer that has none. After
// some milliseconds the wait is long, and short sleeps leave the core to others (a futex wake costs 25 us across
// cores; a 50 us sleep costs no more and needs no notification from the peer). Each sleep is a small share of the wait
// so far, so that a rank that waits for a request all night costs little, and a wait never takes much longer for it.
#include "base/wait.hpp"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace accord {
namespace {
constexpr std::uint32_t kYields = 20000;
constexpr Duration kYieldTime = std::chrono::milliseconds(10);
constexpr std::uint32_t kCheckEvery = 64;
constexpr auto kCheckInterval = std::chrono::milliseconds(1);
constexpr int kWaitPerNap = 64;  // how many times as long the wait has been before a nap
constexpr Duration kShortestNap = std::chrono::microseconds(50), kLongestNap = std::chrono::milliseconds(1);
}  // namespace

bool Waiter::pause_slowly() {
  if (yields_ == 0) began_ = Clock::now();
  if (yields_ < kYields) {
    ++yields_;
    sched_yield();
    // Beside threads that compute, each yield may last as long as their time slice.
    const auto now = Clock::now();
    if (now - began_ >= kYieldTime) yields_ = kYields;
    if (yields_ % kCheckEvery != 1 && now - checked_ < kCheckInterval) return false;
    checked_ = now;
    return true;
  }
  const Duration waited = Clock::now() - began_;
  std::this_thread::sleep_for(std::clamp(waited / kWaitPerNap, kShortestNap, kLongestNap));
  return true;
}

}  // namespace accord
