// The ends of calls in streams, with a result or, once the group has failed, without one.
#include <algorithm>

#include "comm/device/device_backends.hpp"
#include "comm/device/device_channel.hpp"
#include "comm/group.hpp"

namespace accord::comm {
namespace {

/// For the kernels of a failed group's works to end, since the caller may release their memory after that. They are
/// told to end when the group fails, but may be queued behind the caller's own kernels.
constexpr std::chrono::milliseconds kGraceOfKernels(500);

}  // namespace

void DeviceChannel::abort_calls(const Status& failure) {
  end_kernels(failure);
  has_graphs_ = false;
  backends_->abort();
}

void DeviceChannel::end_kernels(const Status& failure) {
  const std::lock_guard lock(under_way_mutex_);
  if (failure_.ok()) failure_ = failure;
  if (!failed_at_) failed_at_ = Clock::now();
  if (stop_ != nullptr) stop_->set();
  if (interruptible_ != nullptr) interruptible_->interrupt();
}

Status DeviceChannel::end_works(Ending which) {
  // Keeps the group open: the end of its last work may close it, and closing calls this function. Without works the
  // owner of the last handle closes it.
  std::shared_ptr<Group> open;
  std::vector<std::pair<std::shared_ptr<PendingWork>, PendingWork::Callbacks>> ended;
  Status device_error;
  {
    const std::lock_guard lock(under_way_mutex_);
    std::erase_if(under_way_, [&](UnderWay& one) {
      const Result<bool> over = runtime_->has_happened(one.end->get());
      if (!over.ok() && device_error.ok() && which == Ending::kOver)
        device_error = over.status().with_context(where(one));
      const bool is_over = over.ok() && *over;
      if (!is_over && which == Ending::kOver) return false;
      if (!is_over && over.ok() && which == Ending::kFailed && one.work != nullptr &&
          Clock::now() - *failed_at_ < kGraceOfKernels)
        return false;
      if (!is_over) ending_.push_back(one.end);
      if (one.work != nullptr && open == nullptr) open = group_.handle();
      if (one.work != nullptr) ended.emplace_back(one.work, one.work->end(failure_));
      last_ended_ = std::max(last_ended_, one.number);
      return true;
    });
    publish_completed();
  }
  for (const auto& [work, callbacks] : ended) work->call_back(callbacks);
  return device_error;
}

}  // namespace accord::comm
