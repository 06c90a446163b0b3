// Ranks that share a GPU, whose kernels run side by side on multiprocessors of their own: sums of bfloat16 by accord's
// plans, and the norm of their rows (hidden size 4096), computed by the kernel that adds them up or by a separate
// kernel after it; one by one, and in CUDA graphs.
#include <string>
#include <vector>

#include "bench/gpu/cuda/gpu.hpp"
#include "comm/internal.hpp"
#include "device/memory.hpp"
#include "engine/gpu/norm.hpp"

namespace accord::bench {
namespace {

constexpr std::int64_t kHidden = 4096;
constexpr std::int64_t kRows[] = {1, 4, 8};

/// Returns memory of zeros.
device::Memory zeros(const Place& place, std::size_t bytes) {
  device::Memory memory = value_of(device::Memory::allocate(place.runtime, place.device, bytes, "the benchmark"));
  check(place.runtime.fill(memory.data(), 0, bytes, place.device, place.stream));
  return memory;
}

Status run_rank(Communicator& comm, const Place& place, const Options& options) {
  const std::size_t most = static_cast<std::size_t>(kRows[std::size(kRows) - 1] * kHidden) * 2;
  std::vector<device::Memory> memories;
  for (int i = 0; i < 4; ++i) memories.push_back(zeros(place, most));
  for (const std::int64_t rows : kRows) {
    const auto count = static_cast<std::size_t>(rows * kHidden);
    const Buffer values{memories[0].data(), count, DType::kBFloat16, place.device};
    engine::NormCalculation norm;
    norm.dtype = DType::kBFloat16;
    norm.rows = rows, norm.width = kHidden;
    norm.x = norm.sum = {memories[0].data(), kHidden};
    norm.y = {memories[1].data(), kHidden};
    norm.residual = {memories[2].data(), kHidden};
    norm.weight = memories[3].data();
    norm.eps = 1e-6F;
    const CallOptions in_stream{.stream = place.stream};
    const std::function<void()> sum = [&] { check(comm.all_reduce(values, ReduceOp::kSum, in_stream)); };
    const std::function<void()> one = [&] {
      check(comm::run(comm, Call::all_reduce(values, values, ReduceOp::kSum), engine::gpu::NormEpilogue(norm),
                      in_stream));
    };
    const std::function<void()> two = [&] {
      sum();
      check(engine::gpu::launch_norm(place.runtime, norm, place.device, place.stream));
    };
    struct Contender {
      const char *operation, *by;
      const std::function<void()>* put;
    };
    const Contender contenders[] = {{"all_reduce of bfloat16", "accord", &sum},
                                    {"all_reduce and norm of bfloat16", "accord", &one},
                                    {"all_reduce and norm of bfloat16", "two kernels", &two}};
    const int calls = options.quick ? 2 : 200;
    for (const bool in_graph : {false, true})
      for (const Contender& contender : contenders) {
        (*contender.put)();  // the first call connects
        meet(comm, place);
        const Figure figure =
            in_graph ? measure_in_graph(comm, place, calls, *contender.put) : measure(place, calls, *contender.put);
        const std::string where = in_graph ? ", in a graph" : "";
        if (comm.rank() == 0)
          print(comm.size(), "threads", contender.operation + where, count * 2, contender.by, figure);
      }
    if (options.quick) break;
  }
  meet(comm, place);
  return {};
}

}  // namespace

int run_threads(const Options& options) {
  const CommunicatorOptions by_plans{.timeout = std::chrono::seconds(60),
                                     .select = "all_reduce[memory=cuda]:0-inf=two_shot,0-64k=packet",
                                     .hints = options.quick ? "max_ctas=2" : ""};
  check(on_threads(options.ranks, GpuUse::kShared, by_plans,
                   [&](Communicator& comm, const Place& place) { return run_rank(comm, place, options); }));
  return 0;
}

}  // namespace accord::bench
