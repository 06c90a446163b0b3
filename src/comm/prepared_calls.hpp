#pragma once
// Operations that were checked, on the channels that run them.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/channel.hpp"
#include "comm/device/owned_calls.hpp"
#include "comm/pending_work.hpp"

namespace accord::comm {

/// Immutable once made. Thread-safe.
class PreparedCalls {
 public:
  /// kInvalidArgument of the first call that is wrong; if there are several it says which.
  static Result<PreparedCalls> make(std::shared_ptr<Group> group, std::span<const Call> calls,
                                    const CallOptions& options);

  /// Runs all to their end; the status is that of the first in the list that failed.
  Status run() const;
  /// Starts them; the work ends when all have.
  std::shared_ptr<PendingWork> start() const;

 private:
  struct Entry {
    Channel* channel;
    std::unique_ptr<const OwnedOperation> operation;
  };
  explicit PreparedCalls(std::shared_ptr<Group> group) : group_(std::move(group)) {}
  /// Queues each on its channel, in order.
  std::vector<Channel::Queued> enqueue() const;

  std::shared_ptr<Group> group_;  ///< a handle: the channels are its
  std::vector<Entry> entries_;
  std::optional<OwnedCalls> on_device_;  ///< all of them; then there are no entries
};

}  // namespace accord::comm
