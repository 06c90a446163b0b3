#pragma once
// The channel through which rank 0 sends the other ranks what to compute.

#include <cstddef>
#include <span>
#include <vector>

#include "accord/status.hpp"

namespace accord::engine {

/// From rank 0 to all others: messages of any length, in order. Used by one thread of each rank; any thread may call
/// fail().
class PlanChannel {
 public:
  virtual ~PlanChannel() = default;

  /// Rank 0: sends `message` to all.
  virtual Status send(std::span<const std::byte> message) = 0;
  /// Other ranks: blocks until the next message arrives and stores it in `message`.
  virtual Status receive(std::vector<std::byte>& message) = 0;
  /// Notifies all ranks that this one failed: their calls on the channel, current or later, fail with `status` or
  /// report it. Called at most once; must not block.
  virtual void fail(const Status& status) = 0;
};

}  // namespace accord::engine
