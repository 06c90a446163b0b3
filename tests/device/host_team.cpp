// A loop gives the turns. A thread that reaches a meeting before the others stops. The last one lets all of them
// continue, and the first of these in the order runs. So a warp, or a lane, that is first in the order runs until it
// waits for a later one.
#include "device/host_team.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>

namespace accord::testing {

HostTurns::HostTurns(int threads, int lanes) : lanes_(lanes), is_ready_(static_cast<std::size_t>(threads), true) {
  shuffle();
}

void HostTurns::begin(std::function<void(int)> work) {
  work_ = std::move(work);
  for (int thread = 0; thread < threads(); ++thread) fibers_.emplace_back([this, thread] { work_(thread); });
  advance();
}

void HostTurns::finish() {
  gate_is_open_ = true;
  for (const int thread : at_gate_) resume(thread);
  if (advance() == 0) return;
  std::fputs("threads of a kernel's block wait at a barrier that other threads do not reach\n", stderr);
  std::abort();
}

void HostTurns::wait_at_gate(int thread) {
  if (gate_is_open_) return;
  at_gate_.push_back(thread);
  stop(thread);
}

int HostTurns::advance() {
  for (int thread = next(); thread != kNoThread; thread = next()) {
    fiber(thread).resume();
    if (!fiber(thread).has_ended()) continue;
    is_ready_[static_cast<std::size_t>(thread)] = false;
    ++ended_;
  }
  return threads() - ended_;
}

void HostTurns::shuffle() {
  std::vector<int> warps(is_ready_.size() / static_cast<std::size_t>(lanes_)), lanes(static_cast<std::size_t>(lanes_));
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
    if (is_ready_[static_cast<std::size_t>(thread)]) return thread;
  return kNoThread;
}

void HostTurns::wait_for_turn(int thread) {
  if (next() != thread) fiber(thread).leave();
}

void HostTurns::stop(int thread) {
  is_ready_[static_cast<std::size_t>(thread)] = false;
  fiber(thread).leave();
}

void HostTurns::resume(int thread) { is_ready_[static_cast<std::size_t>(thread)] = true; }

void HostTurns::yield_turn(int thread) {
  std::erase(order_, thread);
  order_.push_back(thread);
  wait_for_turn(thread);
}

HostTeam::HostTeam(int threads, int first, HostTurns* turns)
    : threads_(threads),
      first_(first),
      turns_(turns),
      barrier_(threads),
      times_(static_cast<std::size_t>(threads)),
      slots_(2, Row(static_cast<std::size_t>(threads))) {}

void HostTeam::sync(int me) {
  if (turns_ == nullptr) return barrier_.arrive_and_wait();
  if (++arrived_ < threads_) return turns_->stop(first_ + me);
  arrived_ = 0;
  for (int thread = 0; thread < threads_; ++thread) turns_->resume(first_ + thread);
  if (threads_ == turns_->threads()) turns_->shuffle();
  turns_->wait_for_turn(first_ + me);
}

void HostTeam::pause(int me) {
  if (turns_ != nullptr) turns_->yield_turn(first_ + me);
  std::this_thread::yield();
}

}  // namespace accord::testing
