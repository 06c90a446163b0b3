#pragma once
// How rank 0 tells the others what to compute.

#include <cstddef>
#include <span>
#include <vector>

#include "accord/status.hpp"

namespace accord::engine {

/// From rank 0 to all others: messages of any length, in order. Used by one thread of each rank; fail() by any.
class PlanChannel {
 public:
  virtual ~PlanChannel() = default;

  /// Rank 0: sends `message` to all.
  virtual Status send(std::span<const std::byte> message) = 0;
  /// The others: waits for the next message and puts it into `message`.
  virtual Status receive(std::vector<std::byte>& message) = 0;
  /// Tells all ranks that this one failed: what they call on the channel, now or later, fails with `status`, or says
  /// so. At most once; must not wait.
  virtual void fail(const Status& status) = 0;
};

}  // namespace accord::engine
