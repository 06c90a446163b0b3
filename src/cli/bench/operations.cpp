// Algorithm bandwidth is bytes divided by time. Bus bandwidth multiplies it by the share of the bytes that must pass
// through the link of the busiest rank, so that it can be compared with the capacity of the link for any number of
// ranks. The factors are those of nccl-tests, doc/PERFORMANCE.md: 2 (n-1)/n for all_reduce, (n-1)/n where each rank
// has a part, 1 for broadcast, reduce and messages. Messages are timed as in the OSU micro-benchmarks: osu_latency,
// osu_bw, osu_bibw.
#include "cli/bench/operations.hpp"

#include <array>
#include <vector>

#include "base/text.hpp"
#include "plan/collective.hpp"

namespace accord::cli {
namespace {

constexpr std::array kOperations = {
    BenchOperation{"all_reduce", Collective::kAllReduce},
    BenchOperation{"reduce", Collective::kReduce},
    BenchOperation{"broadcast", Collective::kBroadcast},
    BenchOperation{"all_gather", Collective::kAllGather},
    BenchOperation{"reduce_scatter", Collective::kReduceScatter},
    BenchOperation{"all_to_all", Collective::kAllToAll},
    BenchOperation{"gather", Collective::kGather},
    BenchOperation{"scatter", Collective::kScatter},
    BenchOperation{"barrier", Collective::kBarrier},
    BenchOperation{"send_recv", Collective::kSendRecv, Traffic::kPingPong},
    BenchOperation{"send_recv_bandwidth", Collective::kSendRecv, Traffic::kOneWay},
    BenchOperation{"send_recv_bidirectional", Collective::kSendRecv, Traffic::kBothWays},
};

bool is_divided(Collective collective) {
  const plan::CollectiveTraits& traits = plan::traits_of(collective);
  return traits.input.divided || traits.output.divided;
}

}  // namespace

std::span<const BenchOperation> bench_operations() { return kOperations; }

Result<const BenchOperation*> bench_operation(std::string_view name) {
  std::vector<std::string_view> names;
  for (const BenchOperation& operation : kOperations) {
    if (operation.name == name) return &operation;
    names.push_back(operation.name);
  }
  return unknown_name("operation", name, names);
}

double total_bytes(const BenchOperation& operation, std::size_t bytes, int ranks) {
  const double one = static_cast<double>(bytes);
  if (operation.traffic == Traffic::kBothWays) return 2 * one;
  return is_divided(operation.collective) ? one * ranks : one;
}

double bus_factor(const BenchOperation& operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (operation.collective == Collective::kAllReduce) return 2 * others;
  return is_divided(operation.collective) ? others : 1;
}

}  // namespace accord::cli
