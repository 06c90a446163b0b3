#pragma once
// The state that a Work refers to.

#include <algorithm>
#include <atomic>
#include <complex>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "accord/status.hpp"
#include "base/clock.hpp"
#include "exec/domain.hpp"
#include "plan/bounds.hpp"

namespace accord::comm {

class Group;
class PendingWork;

/// Drives works to their end.
class WorkDriver {
 public:
  virtual ~WorkDriver() = default;
  /// Called by a thread that waits for `work`: drives it until it has ended, the deadline has passed, or another
  /// thread drives it. Returns false if the thread must not drive it at all.
  virtual bool drive_until_ended(const PendingWork& work, Deadline deadline) = 0;
  /// Called by a thread that only tests: ends works that are over where that is not noticed at once.
  virtual void end_completed() {}
};

/// The position of a work's end in a stream of its device.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  /// Later operations in `stream`, of the same device, begin after it.
  virtual Status block(Stream stream) = 0;
};

/// One operation of a channel: the request that the peers agree on, and this rank's memory.
struct Operation {
  exec::RequestRecord record;
  const void* input = nullptr;
  void* output = nullptr;
  std::complex<double> factor = 1.0;  ///< for premul_sum
  Duration timeout = {};
  const plan::Extent* extent = nullptr;  ///< of unequal parts
};

/// Size of the operation in bytes: a buffer or one part of it; for unequal parts, the larger of this rank's buffers.
inline std::size_t bytes_of(const Operation& operation) {
  if (operation.extent == nullptr) return operation.record.count * size_of(operation.record.dtype);
  const plan::Extent& extent = *operation.extent;
  return std::max(extent.input_count, extent.output_count) * size_of(operation.record.dtype);
}

/// An Operation together with everything that it refers to, except the buffers.
class OwnedOperation {
 public:
  explicit OwnedOperation(const Operation& operation);
  OwnedOperation(const OwnedOperation&) = delete;
  OwnedOperation& operator=(const OwnedOperation&) = delete;
  const Operation& get() const { return operation_; }

 private:
  Operation operation_;
  plan::Extent extent_;
  std::vector<std::size_t> counts_;  ///< of the input's parts, then of the output's
};

/// Fails with kWrongState on a thread that is running callbacks of a work that it has ended: other operations need
/// that thread.
Status check_may_wait();

/// A queued or running operation, shared by its Work handles and the channel that runs it. Ends exactly once.
class PendingWork {
 public:
  /// `driver`: the part of the group that runs it; null if nothing runs it.
  PendingWork(std::shared_ptr<Group> group, WorkDriver* driver, const Operation& operation)
      : operation_(operation), deadline_(Deadline::in(operation.timeout)), group_(std::move(group)), driver_(driver) {}

  const Operation& operation() const { return operation_.get(); }
  /// The timeout counts from the call, not from the start of the operation.
  Deadline deadline() const { return deadline_; }

  /// Returns a work that has ended with `status`.
  static std::shared_ptr<PendingWork> ended(Status status);
  /// Returns a work that ends when all `works` have, with the status of the first of them in the list that failed.
  static std::shared_ptr<PendingWork> all(std::vector<std::shared_ptr<PendingWork>> works);

  /// Returns done(), after ending device works that are over.
  bool test();
  bool done() const { return done_.load(std::memory_order_acquire); }
  void finish(Status status) { call_back(end(std::move(status))); }
  /// finish() in two parts: after end() the work is done; call_back() runs the callbacks.
  using Callbacks = std::vector<std::function<void(const Status&)>>;
  Callbacks end(Status status);
  void call_back(const Callbacks& callbacks) const;
  /// Calls `callback` once with the final status: at once if the work has ended, else on the thread that ends it.
  void on_end(std::function<void(const Status&)> callback);
  /// For a work in a stream. Called before any other thread knows the work.
  void set_mark(std::shared_ptr<DeviceMark> mark) { mark_ = std::move(mark); }
  /// Implements Work::block().
  Status block(Stream stream);
  /// Blocks until the work has ended. Fails as check_may_wait() does if it has not ended and the thread must not
  /// wait.
  Status wait();
  /// Returns the final status; nullopt if the work has not ended by the deadline. Fails as wait() does.
  std::optional<Status> wait_until(Deadline deadline);
  /// REQUIRES: done().
  const Status& status() const { return status_; }

 private:
  /// The group itself, not a handle of it; null once the work has ended.
  std::shared_ptr<Group> group();
  /// Drives the work unless another waiting thread does; returns when this thread can do no more.
  void help(Deadline deadline);

  const OwnedOperation operation_;
  const Deadline deadline_;
  std::shared_ptr<Group> group_;  ///< keeps the group open until the work has ended; changes with mutex_ held
  WorkDriver* const driver_;
  std::shared_ptr<DeviceMark> mark_;
  std::vector<std::shared_ptr<PendingWork>> parts_;  ///< of all()
  std::atomic<bool> done_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
  Callbacks callbacks_;
  Status status_;
};

}  // namespace accord::comm
