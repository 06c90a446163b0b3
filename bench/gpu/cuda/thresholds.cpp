// all_reduce of bfloat16 by size: by each plan in the canonical order, by the switch where there is one, and by NCCL,
// each in a group of its own whose selection table names nothing else. With a GPU for each rank, the figures say from
// which size on the default rules should prefer the next algorithm. Ranks that share a GPU have no NCCL, and their
// memory is faster than any link: there, only the plans can be compared with each other.
#include <string>
#include <vector>

#include "bench/gpu/cuda/gpu.hpp"
#include "device/memory.hpp"
#include "plan/algorithms.hpp"

namespace accord::bench {
namespace {

constexpr std::size_t kSizes[] = {1 << 10,  4 << 10,   8 << 10, 16 << 10, 32 << 10,
                                  64 << 10, 256 << 10, 1 << 20, 4 << 20,  16 << 20};
constexpr std::size_t kQuickSizes[] = {1 << 10, 16 << 10};

/// Ranks whose kernels certainly run side by side on one GPU.
constexpr int kMaxSharing = 4;

struct Contender {
  std::string by;
  std::string select;
};

std::vector<Contender> contenders_of(int ranks) {
  std::vector<Contender> contenders;
  const bool apart = ranks > 1 && each_has_a_gpu(ranks);
  const Device first{DeviceType::kCuda, 0};
  const bool has_switch = apart && value_of(runtime())->multicast_bytes(first, ranks, 1 << 20).ok();
  for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
    if (entry.collective != Collective::kAllReduce) continue;
    const std::string rule = "all_reduce[memory=cuda]:0-inf=" + std::string(entry.name);
    const bool is_plain = entry.buffers == plan::Buffers::kAnywhere && entry.fits == nullptr;
    // With "canonical", a plan that cannot serve a call is an error. Otherwise NCCL would serve it.
    if (is_plain && entry.order == plan::Order::kCanonical)
      contenders.push_back({std::string(entry.name), "deterministic=canonical;" + rule});
    if (entry.multicasts && has_switch) contenders.push_back({std::string(entry.name), rule});
  }
  if (apart && nccl().ok()) contenders.push_back({"nccl", "all_reduce[memory=cuda]:0-inf=nccl"});
  return contenders;
}

Status run_rank(Communicator& comm, const Place& place, const Contender& contender, const Options& options) {
  const std::vector<std::size_t> sizes = options.quick
                                             ? std::vector<std::size_t>(std::begin(kQuickSizes), std::end(kQuickSizes))
                                             : std::vector<std::size_t>(std::begin(kSizes), std::end(kSizes));
  const device::Memory memory =
      value_of(device::Memory::allocate(place.runtime, place.device, sizes.back(), "the benchmark"));
  check(place.runtime.fill(memory.data(), 0, memory.size(), place.device, place.stream));
  for (const std::size_t bytes : sizes) {
    const Buffer values{memory.data(), bytes / 2, DType::kBFloat16, place.device};
    const Status first = comm.all_reduce(values, ReduceOp::kSum, {.stream = place.stream});
    if (!first.ok()) return first;
    meet(comm, place);
    const std::function<void()> put = [&] { check(comm.all_reduce(values, ReduceOp::kSum, {.stream = place.stream})); };
    const int calls = options.quick ? 2 : bytes > (1 << 20) ? 20 : 100;
    for (const bool in_graph : {false, true}) {
      const Figure figure = in_graph ? measure_in_graph(comm, place, calls, put) : measure(place, calls, put);
      const std::string where = in_graph ? ", in a graph" : "";
      if (comm.rank() == 0)
        print(comm.size(), placement_of(comm.size()), "all_reduce of bfloat16" + where, bytes, contender.by, figure);
    }
  }
  meet(comm, place);
  return {};
}

}  // namespace

int run_thresholds(const Options& options) {
  if (options.ranks > kMaxSharing && !each_has_a_gpu(options.ranks)) {
    std::fprintf(stderr, "bench_gpu: skipped: a GPU may have no room for the kernels of %d ranks\n", options.ranks);
    return kSkipped;
  }
  for (const Contender& contender : contenders_of(options.ranks)) {
    const CommunicatorOptions only{
        .timeout = std::chrono::seconds(60), .select = contender.select, .hints = options.quick ? "max_ctas=2" : ""};
    const Status status = on_threads(options.ranks, GpuUse::kApart, only, [&](Communicator& comm, const Place& place) {
      return run_rank(comm, place, contender, options);
    });
    if (!status.ok()) std::fprintf(stderr, "left out: %s: %s\n", contender.by.c_str(), status.message().c_str());
  }
  return 0;
}

}  // namespace accord::bench
