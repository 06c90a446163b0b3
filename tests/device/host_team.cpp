// The turn is a semaphore of each thread. Who comes to a meeting before the others stops, the last one lets all of them go on, and whoever of these
// stands first in the order does. So a warp, or a lane, that stands first runs until it waits for one that stands behind it.
#include "device/host_team.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>

namespace accord::testing {

HostTurns::HostTurns(int threads, int lanes) : lanes_(lanes), threads_(static_cast<std::size_t>(threads)) {
  shuffle();
  threads_[static_cast<std::size_t>(order_.front())].turn.release();
}

void HostTurns::shuffle() {
  std::vector<int> warps(threads_.size() / static_cast<std::size_t>(lanes_)), lanes(static_cast<std::size_t>(lanes_));
  std::iota(warps.begin(), warps.end(), 0);
  std::iota(lanes.begin(), lanes.end(), 0);
  std::shuffle(warps.begin(), warps.end(), random_);
  std::shuffle(lanes.begin(), lanes.end(), random_);
  order_.clear();
  for (const int warp : warps)
    for (const int lane : lanes) order_.push_back(warp * lanes_ + lane);
}

int HostTurns::next() const {
  for (const int thread : order_)
    if (threads_[static_cast<std::size_t>(thread)].is_ready) return thread;
  return kNobody;
}

void HostTurns::begin(int thread) { threads_[static_cast<std::size_t>(thread)].turn.acquire(); }

void HostTurns::end(int thread) {
  threads_[static_cast<std::size_t>(thread)].is_ready = false;
  --left_;
  const int other = next();
  if (other != kNobody) return threads_[static_cast<std::size_t>(other)].turn.release();
  if (left_ > 0) fail();
}

void HostTurns::go_on(int thread) {
  const int other = next();
  if (other == kNobody) fail();
  if (other == thread) return;
  threads_[static_cast<std::size_t>(other)].turn.release();
  threads_[static_cast<std::size_t>(thread)].turn.acquire();
}

void HostTurns::stop(int thread) {
  threads_[static_cast<std::size_t>(thread)].is_ready = false;
  go_on(thread);
}

void HostTurns::resume(int thread) { threads_[static_cast<std::size_t>(thread)].is_ready = true; }

void HostTurns::give_way(int thread) {
  std::erase(order_, thread);
  order_.push_back(thread);
  go_on(thread);
}

void HostTurns::fail() const {
  std::fputs("threads of a kernel's block meet where others do not come\n", stderr);
  std::abort();
}

HostTeam::HostTeam(int threads, int first, HostTurns* turns)
    : threads_(threads),
      first_(first),
      turns_(turns),
      barrier_(threads),
      times_(static_cast<std::size_t>(threads)),
      shown_(2, Row(static_cast<std::size_t>(threads))) {}

void HostTeam::meet(int me) {
  if (turns_ == nullptr) return barrier_.arrive_and_wait();
  if (++arrived_ < threads_) return turns_->stop(first_ + me);
  arrived_ = 0;
  for (int thread = 0; thread < threads_; ++thread) turns_->resume(first_ + thread);
  if (threads_ == turns_->threads()) turns_->shuffle();
  turns_->go_on(first_ + me);
}

void HostTeam::pause(int me) {
  if (turns_ != nullptr) turns_->give_way(first_ + me);
  std::this_thread::yield();
}

}  // namespace accord::testing
