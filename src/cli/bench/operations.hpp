#pragma once
// What `accord bench` can measure, and how its bandwidths are counted.

#include <cstddef>
#include <span>
#include <string_view>

#include "accord/call.hpp"
#include "accord/status.hpp"

namespace accord::cli {

/// How an operation is repeated while it is timed.
enum class Traffic : std::uint8_t {
  kCollective,  ///< all ranks call it, one call after the other
  kPingPong,    ///< a message from rank 0 to rank 1 and one back; the time is half of that
  kOneWay,      ///< many messages from rank 0 to rank 1 at once, and an answer at their end; the time is that of one
  kBothWays,    ///< the same in both directions at once; the time is that of one pair
};

struct BenchOperation {
  std::string_view name;  ///< "all_reduce", "send_recv_bandwidth"
  Collective collective = Collective::kBarrier;
  Traffic traffic = Traffic::kCollective;
};

std::span<const BenchOperation> bench_operations();
/// kInvalidArgument names the nearest one.
Result<const BenchOperation*> bench_operation(std::string_view name);

/// Bytes of the whole operation, by which its algorithm bandwidth is counted: nccl-tests' "size". `bytes`: as in a selection table,
/// of one part where the collective divides a buffer.
double total_bytes(const BenchOperation& operation, std::size_t bytes, int ranks);
/// What the algorithm bandwidth is multiplied by to give the bus bandwidth: nccl-tests' factors.
double bus_factor(const BenchOperation& operation, int ranks);

}  // namespace accord::cli
