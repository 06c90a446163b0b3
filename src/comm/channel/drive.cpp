// Which thread drives a channel with a non-empty queue: the caller that found it idle, then the progress thread, or
// in its place a thread that waits for one of the channel's works.
#include "base/wait.hpp"
#include "comm/channel/channel.hpp"
#include "comm/group.hpp"
#include "comm/progress.hpp"

namespace accord::comm {
namespace {

/// A started operation of at most this many bytes is driven by its caller as far as it gets at once: its own part
/// takes a microsecond or two.
constexpr std::size_t kDrivenAtOnce = 8 << 10;

}  // namespace

void Channel::hand_over() {
  const std::lock_guard lock(handover_.mutex);
  handover_.is_under_way = true;
  ProgressThread::instance().activate(group_.shared_from_this(), *this, ++handover_.number);
}

void Channel::begin_driving(const Operation& operation) {
  const bool quick = bytes_of(operation) <= kDrivenAtOnce && operation.extent == nullptr;
  for (Advance advanced = Advance::kMoved; quick && advanced == Advance::kMoved;) {
    EndedWorks ended;
    advanced = advance(ended, limits_);
    ended.notify();
    if (advanced == Advance::kIdle) return;
  }
  hand_over();
}

Channel::Advance Channel::advance_handed_over(EndedWorks& ended, exec::PollLimits limits) {
  const Advance advanced = advance(ended, limits);
  if (advanced == Advance::kIdle) handover_.is_under_way = false;
  return advanced;
}

Channel::Driven Channel::drive(std::uint64_t handover) {
  EndedWorks ended;
  Advance advanced;
  {
    const std::unique_lock lock(handover_.mutex, std::try_to_lock);
    if (!lock.owns_lock()) return Driven::kByAnother;
    if (!handover_.is_under_way || handover_.number != handover) return Driven::kIdle;
    advanced = advance_handed_over(ended, {});
  }
  ended.notify();
  switch (advanced) {
    case Advance::kIdle: return Driven::kIdle;
    case Advance::kMoved: return Driven::kMoved;
    case Advance::kStalled: break;
  }
  return Driven::kStalled;
}

bool Channel::drive_until_ended(const PendingWork& work, Deadline deadline) {
  std::unique_lock lock(handover_.mutex, std::try_to_lock);
  if (!lock.owns_lock() || !handover_.is_under_way) return false;
  Waiter waiter(policy_, limits_.checks);
  while (!work.done()) {
    EndedWorks ended;
    const Advance advanced = advance_handed_over(ended, limits_);
    if (ended.has_any()) {
      lock.unlock();
      ended.notify();
      if (advanced == Advance::kIdle || !lock.try_lock() || !handover_.is_under_way) return true;
    }
    if (advanced == Advance::kMoved)
      waiter = Waiter(policy_, limits_.checks);
    else if (waiter.pause() && deadline.at() <= Clock::now())
      break;
  }
  lock.unlock();
  ProgressThread::instance().recheck();
  return true;
}

}  // namespace accord::comm
