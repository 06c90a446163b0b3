#pragma once
// An operation in progress.

#include <functional>
#include <memory>
#include <optional>

#include "accord/buffer.hpp"
#include "accord/status.hpp"
#include "accord/store.hpp"

namespace accord {

namespace comm {
class PendingWork;
}

/// A collective or message that was started and makes progress by itself, without further calls by the user.
///
/// A handle: copies refer to the same operation. It may outlive its communicator, and may be destroyed before the
/// operation is done; the buffers must live until it is done. Thread-safe.
class Work {
 public:
  /// Creates a Work that is done with `status`.
  explicit Work(Status status);
  explicit Work(std::shared_ptr<comm::PendingWork> pending);

  /// True once the operation has ended, successfully or not. Never blocks.
  bool test() const;
  /// The operation's status; nullopt while it is in progress. Never blocks.
  std::optional<Status> status() const;
  /// Calls `callback` once with the operation's status: immediately if it has ended, else on the thread that ends it,
  /// which is often accord's own; a thread that waits may continue before. Callbacks of a Work are called in the
  /// order in which they were passed. Other operations stand still meanwhile, so a callback must be short, must not
  /// wait for any of them, and must not throw.
  void on_end(std::function<void(const Status&)> callback);
  /// Blocks until the operation has ended and returns its status. The call's own timeout bounds the wait.
  Status wait();
  /// For a call on a GPU: makes later work in `stream`, of that device, wait until the operation has ended; the
  /// caller continues immediately. After a failure `stream` waits for kernels of the operation that still use the
  /// buffers, and the result is that failure. For a call on the CPU: same as wait().
  Status block(Stream stream);
  /// Blocks for at most `timeout`. Returns nullopt if the operation is still in progress then; it is not canceled.
  std::optional<Status> wait_for(Duration timeout);

 private:
  std::shared_ptr<comm::PendingWork> pending_;
};

}  // namespace accord
