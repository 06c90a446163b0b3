#pragma once
// The operations that `accord bench` can measure, and how their bandwidths are computed.

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
  kOneWay,      ///< many messages at once from rank 0 to rank 1, then a reply; the time is that of one message
  kBothWays,    ///< the same in both directions at once; the time is that of one pair
};

struct BenchOperation {
  std::string_view name;  ///< "all_reduce", "send_recv_bandwidth"
  Collective collective = Collective::kBarrier;
  Traffic traffic = Traffic::kCollective;
};

std::span<const BenchOperation> bench_operations();
/// Fails with kInvalidArgument, which names the nearest operation.
Result<const BenchOperation*> bench_operation(std::string_view name);

/// Bytes of the whole operation, from which its algorithm bandwidth is computed: the "size" of nccl-tests. `bytes`:
/// as in a selection table, of one part if the collective divides a buffer.
double total_bytes(const BenchOperation& operation, std::size_t bytes, int ranks);
/// Factor from algorithm bandwidth to bus bandwidth, as in nccl-tests.
double bus_factor(const BenchOperation& operation, int ranks);

}  // namespace accord::cli
