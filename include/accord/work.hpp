#pragma once
// An operation under way.

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

/// A collective or message that was started and goes on by itself: progress needs no call from the user.
///
/// A handle: copies refer to the same operation. It may outlive its communicator, and may be dropped before it is done;
/// the buffers must live until it is done. Thread-safe.
class Work {
 public:
  /// A Work that is done with `status`.
  explicit Work(Status status);
  explicit Work(std::shared_ptr<comm::PendingWork> pending);

  /// True once the operation has ended, well or badly. Never blocks.
  bool test() const;
  /// How it ended; nullopt while it goes on. Never blocks.
  std::optional<Status> status() const;
  /// Calls `callback` once with how it ended: now if it has, else on the thread that ends it, which is often accord's own; whoever
  /// waits may go on before. Callbacks of a Work are called in the order in which they were given. Other operations stand still
  /// meanwhile, so a callback must be short, wait for none of them, and not throw.
  void on_end(std::function<void(const Status&)> callback);
  /// Blocks until the operation has ended and gives how; the call's own timeout bounds it.
  Status wait();
  /// For a call on a GPU: what comes later in `stream`, of that device, begins once the operation has ended; the caller goes on at once. For one on
  /// the CPU the same as wait().
  Status block(Stream stream);
  /// Blocks for at most `timeout`: nullopt if the operation still goes on then (it is not cancelled).
  std::optional<Status> wait_for(Duration timeout);

 private:
  std::shared_ptr<comm::PendingWork> pending_;
};

}  // namespace accord
