#pragma once
// What a Work refers to.

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

/// What ends works.
class WorkDriver {
 public:
  virtual ~WorkDriver() = default;
  /// A thread that waits for `work`: drives it until that has ended, or the deadline, or another thread drives it. False if it may not
  /// drive it at all.
  virtual bool drive_until_ended(const PendingWork& work, Deadline deadline) = 0;
  /// Whoever only asks: ends what is over, where nobody sees at once that it is.
  virtual void end_what_is_over() {}
};

/// Where the end of a work lies in a stream of its device.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  /// What comes later in `stream`, of the same device, begins after it.
  virtual Status block(Stream stream) = 0;
};

/// One operation of a channel: what is agreed with the peers, and this rank's memory.
struct Operation {
  exec::RequestRecord record;
  const void* input = nullptr;
  void* output = nullptr;
  std::complex<double> factor = 1.0;  ///< premul_sum
  Duration timeout = {};
  const plan::Extent* extent = nullptr;  ///< of parts that differ
};

/// What the operation counts as: a buffer or one part of it, or where parts differ what this rank has of them.
inline std::size_t bytes_of(const Operation& operation) {
  if (operation.extent == nullptr) return operation.record.count * size_of(operation.record.dtype);
  const plan::Extent& extent = *operation.extent;
  return std::max(extent.input_count, extent.output_count) * size_of(operation.record.dtype);
}

/// An Operation with what it refers to, but for the buffers.
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

/// kWrongState on a thread that is calling callbacks of a work that it has ended: other operations need that thread.
Status check_may_wait();

/// A queued or running operation, shared by its Work handles and the channel that runs it. Ends exactly once.
class PendingWork {
 public:
  /// `driver`: of the group, which runs it; null for one that nobody runs.
  PendingWork(std::shared_ptr<Group> group, WorkDriver* driver, const Operation& operation)
      : operation_(operation), deadline_(Deadline::in(operation.timeout)), group_(std::move(group)), driver_(driver) {}

  const Operation& operation() const { return operation_.get(); }
  /// Its timeout counts from the call, not from when its turn comes.
  Deadline deadline() const { return deadline_; }

  /// One that has ended with `status`.
  static std::shared_ptr<PendingWork> ended(Status status);
  /// One that ends when all `works` have, as the first of them in the list that failed.
  static std::shared_ptr<PendingWork> all(std::vector<std::shared_ptr<PendingWork>> works);

  /// done(), after a look.
  bool test();
  bool done() const { return done_.load(std::memory_order_acquire); }
  void finish(Status status) { call_back(end(std::move(status))); }
  /// finish() in two parts: from the first one on it is done; the second calls back.
  using Callbacks = std::vector<std::function<void(const Status&)>>;
  Callbacks end(Status status);
  void call_back(const Callbacks& callbacks) const;
  /// Calls `callback` once with how it ended: at once if it has, else on the thread that ends it.
  void on_end(std::function<void(const Status&)> callback);
  /// In a stream; before anybody else knows the work.
  void set_mark(std::shared_ptr<DeviceMark> mark) { mark_ = std::move(mark); }
  /// Work::block().
  Status block(Stream stream);
  /// Blocks until it has ended. check_may_wait() if it has not and may not.
  Status wait();
  /// How it ended; nullopt if it has not by the deadline. The same.
  std::optional<Status> wait_until(Deadline deadline);
  /// REQUIRES: done().
  const Status& status() const { return status_; }

 private:
  /// The group, no handle of it, until the work has ended: null then.
  std::shared_ptr<Group> group();
  /// Drives what is to end it, where that is not done by somebody who waits as well; returns when there is no more to do here.
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
