#pragma once
// The operations of one channel in the order of their calls, and the works that have ended but do not say so yet.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/channel/turns.hpp"
#include "comm/pending_work.hpp"

namespace accord::comm {

/// An operation that waits for its turn, or whose turn it is.
struct QueuedOperation {
  std::shared_ptr<PendingWork> work;
  std::uint64_t number = 0;  ///< of the operation
};

/// Works that have ended, and how. The thread that drove the channel calls notify() once it holds nothing that
/// callbacks may need. The channel's next operation waits until the works are done, so that its caller sees them as
/// done.
struct EndedWorks {
  std::shared_ptr<PendingWork> work;
  Status status;
  std::vector<std::shared_ptr<PendingWork>> early;   ///< ended well, before their turn
  std::atomic<std::uint32_t>* unnotified = nullptr;  ///< counter of the queue; null if there is no work here
  bool has_any() const { return unnotified != nullptr; }
  void notify();
};

/// Thread-safe. The thread that has the turn owns the channel.
class OperationQueue {
 public:
  Turns& turns() { return turns_; }
  const Turns& turns() const { return turns_; }

  /// Keeps the queue as it is while the lock is held.
  class Lock {
   public:
    explicit Lock(OperationQueue& queue) : queue_(queue), lock_(queue.mutex_) {}
    const std::deque<QueuedOperation>& operations() const { return queue_.operations_; }
    /// The first operation that `fits`; empty if there is none.
    template <typename Fits>
    QueuedOperation find(Fits fits) const {
      const auto found = std::find_if(operations().begin(), operations().end(),
                                      [&fits](const QueuedOperation& entry) { return fits(entry.work->operation()); });
      return found == operations().end() ? QueuedOperation() : *found;
    }
    /// Adds an operation at the end.
    Turns::Place push(const std::shared_ptr<PendingWork>& work) {
      const Turns::Place place = queue_.turns_.queue();
      queue_.operations_.push_back({work, place.number});
      queue_.pushed_.fetch_add(1, std::memory_order_release);
      return place;
    }

   private:
    OperationQueue& queue_;
    const std::lock_guard<std::mutex> lock_;
  };

  /// Grows with each operation that is added.
  std::uint64_t pushed() const { return pushed_.load(std::memory_order_acquire); }

  // For the owner of the channel.
  /// REQUIRES: the queue is not empty.
  QueuedOperation front() {
    const std::lock_guard lock(mutex_);
    return operations_.front();
  }
  /// Moves the first operation to `ended` and ends its turn. Returns false if no operation waits; the caller then no
  /// longer owns the channel.
  bool end_front(EndedWorks& ended);
  /// Removes an operation that ended before its turn.
  void remove(const QueuedOperation& operation);
  /// Notes that `ended` holds works whose waiters are not notified yet.
  void note_unnotified(EndedWorks& ended) {
    if (std::exchange(ended.unnotified, &unnotified_) == nullptr) unnotified_.fetch_add(1, std::memory_order_relaxed);
  }
  /// Returns once every work that ended is done.
  void wait_until_notified() const {
    while (unnotified_.load(std::memory_order_acquire) != 0) [[unlikely]] std::this_thread::yield();
  }

 private:
  Turns turns_;
  std::mutex mutex_;
  std::deque<QueuedOperation> operations_;
  std::atomic<std::uint64_t> pushed_ = 0;
  std::atomic<std::uint32_t> unnotified_ = 0;  ///< threads that hold ended works which are not done yet
};

}  // namespace accord::comm
