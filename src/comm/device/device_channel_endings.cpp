// The ends of calls in streams, with a result or, once the group has failed, without one.
#include <algorithm>

#include "base/wait.hpp"
#include "comm/device/device_backends.hpp"
#include "comm/device/device_channel.hpp"
#include "comm/group.hpp"

namespace accord::comm {
namespace {

/// For the kernels of a failed group's works to end, since the caller may release their memory after that. They are
/// told to end when the group fails, but may be queued behind the caller's own kernels.
constexpr std::chrono::milliseconds kGraceOfKernels(500);

}  // namespace

Status DeviceChannel::end_works(Ending which) {
  // Keeps the group open: the end of its last work may close it, and closing calls this function. Without works the
  // owner of the last handle closes it.
  std::shared_ptr<Group> open;
  std::vector<std::pair<std::shared_ptr<PendingWork>, PendingWork::Callbacks>> ended;
  Status device_error;
  std::vector<std::shared_ptr<DeviceEvent>> ends;
  {
    const std::lock_guard lock(under_way_mutex_);
    for (const UnderWay& one : under_way_) ends.push_back(one.end);
  }
  // Without the mutex: CUDA may hold this thread up until a kernel ends that waits for a peer.
  std::vector<Result<bool>> have_happened;
  have_happened.reserve(ends.size());
  for (const auto& end : ends) have_happened.push_back(runtime_->has_happened(end->get()));
  {
    const std::lock_guard lock(under_way_mutex_);
    std::size_t next = 0;
    std::erase_if(under_way_, [&](UnderWay& one) {
      // Meanwhile some may have been ended by other threads, and others added at the end.
      while (next < ends.size() && ends[next] != one.end) ++next;
      if (next == ends.size()) return false;
      const Result<bool>& over = have_happened[next];
      if (!over.ok() && device_error.ok() && which == Ending::kOver)
        device_error = over.status().with_context(where(one));
      const bool is_over = over.ok() && *over;
      if (is_over && which == Ending::kOver) {
        // Ranks' different calls may all have ended before the other thread compared them.
        const Status mismatch = mismatch_of(one);
        if (!mismatch.ok() && device_error.ok()) device_error = mismatch;
        if (!mismatch.ok()) return false;
      }
      if (!is_over && which == Ending::kOver) return false;
      if (!is_over && over.ok() && which == Ending::kFailed && one.work != nullptr &&
          Clock::now() - *failed_at_ < kGraceOfKernels)
        return false;
      if (one.work != nullptr && open == nullptr) open = group_.handle();
      if (one.work != nullptr) ended.emplace_back(one.work, one.work->end(failure_));
      return true;
    });
  }
  for (const auto& [work, callbacks] : ended) work->call_back(callbacks);
  return device_error;
}

DeviceChannel::Pace DeviceChannel::poll() {
  Status failure = end_works(Ending::kOver);
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return Pace::kFast;
    if (closed_ || backends_ == nullptr) return Pace::kDone;
    failure = failure.ok() ? find_failure() : group_.state().fail(failure);
  }
  if (!failure.ok()) {
    abort_calls(failure);
    (void)end_works(Ending::kFailed);
  }
  return pace();
}

bool DeviceChannel::is_any_under_way() {
  const std::lock_guard lock(under_way_mutex_);
  return !under_way_.empty();
}

DeviceChannel::Pace DeviceChannel::pace() {
  const bool is_calling = !std::unique_lock(mutex_, std::try_to_lock).owns_lock();
  if (is_calling || is_any_under_way()) return Pace::kFast;
  return has_graphs_ ? Pace::kSlow : Pace::kDone;
}

bool DeviceChannel::drive_until_ended(const PendingWork& work, Deadline deadline) {
  Waiter waiter(WaitPolicy::kSpinBriefly);
  while (!work.done() && !deadline.passed()) {
    (void)poll();
    if (!work.done()) (void)waiter.pause();
  }
  return true;
}

void DeviceChannel::wait_until_idle() {
  const auto is_any_left = [this] {
    const std::lock_guard nobody_connects(mutex_);
    return is_any_under_way();
  };
  Waiter waiter(WaitPolicy::kYield);
  while (poll() != Pace::kDone && is_any_left()) (void)waiter.pause();
}

}  // namespace accord::comm
