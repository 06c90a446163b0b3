#pragma once
// An operation under way.

#include <memory>
#include <optional>

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
  /// Blocks until the operation has ended and gives how; the call's own timeout bounds it.
  Status wait();
  /// Blocks for at most `timeout`: nullopt if the operation still goes on then (it is not cancelled).
  std::optional<Status> wait_for(Duration timeout);

 private:
  std::shared_ptr<comm::PendingWork> pending_;
};

}  // namespace accord
