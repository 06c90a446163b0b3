// An operation leaves the queue when it ends, and not when its turn begins, so that its deadline and its tag can be
// seen while it runs.
#include "comm/channel/operation_queue.hpp"

namespace accord::comm {

void EndedWorks::notify() {
  if (!has_any()) return;
  std::vector<PendingWork::Callbacks> callbacks;
  callbacks.reserve(early.size());
  for (const auto& one : early) callbacks.push_back(one->end({}));
  const PendingWork::Callbacks last = work == nullptr ? PendingWork::Callbacks() : work->end(std::move(status));
  // Callbacks may make calls that begin on this channel.
  std::exchange(unnotified, nullptr)->fetch_sub(1, std::memory_order_release);
  for (std::size_t i = 0; i < callbacks.size(); ++i) early[i]->call_back(callbacks[i]);
  if (work != nullptr) work->call_back(last);
  early.clear();
  work = nullptr;
}

bool OperationQueue::end_front(EndedWorks& ended) {
  note_unnotified(ended);  // before another thread may have the turn
  {
    const std::lock_guard lock(mutex_);
    ended.work = std::move(operations_.front().work);
    operations_.pop_front();
  }
  return turns_.next();
}

void OperationQueue::remove(const QueuedOperation& operation) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(operations_, [&](const QueuedOperation& entry) { return entry.work == operation.work; });
  }
  (void)turns_.next();  // this does not end the turn of the running operation
}

}  // namespace accord::comm
