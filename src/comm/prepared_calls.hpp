#pragma once
// Operations that have been checked, with the channels that run them.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/channel/channel.hpp"
#include "comm/device/owned_calls.hpp"
#include "comm/pending_work.hpp"

namespace accord::comm {

/// Immutable once created. Thread-safe.
class PreparedCalls {
 public:
  /// Fails with kInvalidArgument for the first invalid call, and says which one if there are several.
  static Result<PreparedCalls> make(std::shared_ptr<Group> group, std::span<const Call> calls,
                                    const CallOptions& options);

  /// Runs all of them to their end. The status is that of the first in the list that failed.
  Status run() const;
  /// Starts all of them. The work ends when all have.
  std::shared_ptr<PendingWork> start() const;

 private:
  struct Entry {
    Channel* channel;
    std::unique_ptr<const OwnedOperation> operation;
  };
  explicit PreparedCalls(std::shared_ptr<Group> group) : group_(std::move(group)) {}
  /// Queues each on its channel, in order.
  std::vector<Channel::Queued> enqueue() const;

  std::shared_ptr<Group> group_;  ///< a handle; the group owns the channels
  std::vector<Entry> entries_;
  std::optional<OwnedCalls> on_device_;  ///< all of them; then there are no entries
};

}  // namespace accord::comm
