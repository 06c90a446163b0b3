#pragma once
// Counters of a communicator's work so far.

#include <array>
#include <cstdint>

#include "accord/call.hpp"

namespace accord {

/// Counts of one rank since the communicator was created. A value.
struct Counters {
  struct Of {
    std::uint64_t calls = 0;  ///< calls that began
    /// Bytes of the caller's buffer. If the buffer is divided among the ranks, the bytes of one part (all_gather:
    /// input, reduce_scatter: output, all_to_all: what is sent to one other rank), as in the selector's table. Where
    /// parts differ, the bytes of the larger of the call's two buffers.
    std::uint64_t bytes = 0;
  };
  /// In the order of Collective; send and recv count as send_recv.
  std::array<Of, kCollectiveCount> by_collective = {};
  std::uint64_t failures = 0;  ///< calls that began, or were queued, and failed
  /// Calls that waited for other ranks long enough (tens of microseconds) to check for failures.
  std::uint64_t waits = 0;
  /// Calls that were queued behind others, plus all calls that were started asynchronously or in a batch.
  std::uint64_t queued = 0;

  const Of& of(Collective collective) const { return by_collective[static_cast<std::size_t>(collective)]; }
};

}  // namespace accord
