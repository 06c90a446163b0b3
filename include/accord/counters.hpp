#pragma once
// What a communicator has done so far, in numbers.

#include <array>
#include <cstdint>

#include "accord/call.hpp"

namespace accord {

/// Counts of one rank since the communicator was made. A value.
struct Counters {
  struct Of {
    std::uint64_t calls = 0;  ///< that began
    /// Of the caller's buffer; of one part of it where it is divided among the ranks (all_gather: input, reduce_scatter: output,
    /// all_to_all: what goes to one other rank), as in the selector's table. Where parts differ, of the larger of its two buffers.
    std::uint64_t bytes = 0;
  };
  std::array<Of, kCollectiveCount> by_collective =
      {};                      ///< in the order of Collective; send and recv count as send_recv
  std::uint64_t failures = 0;  ///< calls that began, or were queued, and ended in an error
  std::uint64_t waits =
      0;  ///< calls that waited so long for others (tens of microseconds) that they looked for failures
  std::uint64_t queued =
      0;  ///< calls that found others before them, and all that were started asynchronously or several at once

  const Of& of(Collective collective) const { return by_collective[static_cast<std::size_t>(collective)]; }
};

}  // namespace accord
