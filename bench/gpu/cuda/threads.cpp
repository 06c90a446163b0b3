// Ranks as threads of one process, whose kernels run side by side on their own multiprocessors: sums of bfloat16
// by accord's plans, and the norm of their rows (hidden size 4096), computed by the kernel that adds them up or by a
// separate kernel after it; one by one, and in CUDA graphs.
#include <string>
#include <thread>
#include <vector>

#include "accord/communicator.hpp"
#include "bench/gpu/cuda/gpu.hpp"
#include "comm/internal.hpp"
#include "device/cuda/runtime.hpp"
#include "engine/gpu/norm.hpp"

namespace accord::bench {
namespace {

constexpr std::int64_t kHidden = 4096;
constexpr std::int64_t kRows[] = {1, 4, 8};
constexpr int kCalls = 200;
/// Calls in a graph, which is launched kCalls / kInGraph times.
constexpr int kInGraph = 20;

/// Returns a buffer of zeros.
void* zeros(device::Runtime& runtime, std::size_t bytes, Stream stream) {
  void* const memory = value_of(runtime.allocate(kDevice, bytes));
  check(runtime.fill(memory, 0, bytes, kDevice, stream));
  return memory;
}

void run_rank(Communicator& comm) {
  device::Runtime& runtime = device::cuda::runtime();
  check(cudaSetDevice(kDevice.index));
  const Stream stream = value_of(runtime.create_stream(kDevice, false));
  auto* const handle = static_cast<cudaStream_t>(stream.handle);
  const std::size_t most = static_cast<std::size_t>(kRows[std::size(kRows) - 1] * kHidden) * 2;
  std::vector<void*> memories;
  for (int i = 0; i < 4; ++i) memories.push_back(zeros(runtime, most, stream));
  for (const std::int64_t rows : kRows) {
    const auto count = static_cast<std::size_t>(rows * kHidden);
    const Buffer values{memories[0], count, DType::kBFloat16, kDevice};
    engine::NormCalculation norm;
    norm.dtype = DType::kBFloat16;
    norm.rows = rows, norm.width = kHidden;
    norm.x = norm.sum = {memories[0], kHidden};
    norm.y = {memories[1], kHidden};
    norm.residual = {memories[2], kHidden};
    norm.weight = memories[3];
    norm.eps = 1e-6F;
    const CallOptions options{.stream = stream};
    const std::function<void()> sum = [&] { check(comm.all_reduce(values, ReduceOp::kSum, options)); };
    const std::function<void()> one = [&] {
      check(
          comm::run(comm, Call::all_reduce(values, values, ReduceOp::kSum), engine::gpu::NormEpilogue(norm), options));
    };
    const std::function<void()> two = [&] {
      sum();
      check(engine::gpu::launch_norm(runtime, norm, kDevice, stream));
    };
    struct Contender {
      const char *operation, *by;
      const std::function<void()>* put;
    };
    const Contender contenders[] = {{"all_reduce of bfloat16", "accord", &sum},
                                    {"all_reduce and norm of bfloat16", "accord", &one},
                                    {"all_reduce and norm of bfloat16", "two kernels", &two}};
    for (const bool in_graph : {false, true})
      for (const Contender& contender : contenders) {
        const std::function<void()>& put = *contender.put;
        put();  // the first call connects
        check(runtime.synchronize(kDevice, stream));
        check(comm.barrier());
        Figure figure;
        if (in_graph) {
          const device::Graph graph = value_of(runtime.capture(kDevice, stream, [&] {
            for (int i = 0; i < kInGraph; ++i) put();
            return Status();
          }));
          check(comm.barrier());
          figure = measure(handle, kCalls / kInGraph, [&] { check(runtime.launch_graph(graph, kDevice, stream)); });
          figure = {figure.device_us / kInGraph, figure.host_us / kInGraph};
          check(comm.barrier());
          check(runtime.destroy_graph(graph));  // which may wait for everything that runs on the GPU
          check(comm.barrier());
        } else {
          figure = measure(handle, kCalls, put);
        }
        const std::string where = in_graph ? ", in a graph" : "";
        if (comm.rank() == 0)
          print(comm.size(), "threads", (contender.operation + where).c_str(), count * 2, contender.by, figure);
      }
  }
  check(comm.barrier());
  for (void* const memory : memories) check(runtime.release(kDevice, memory));
  comm.close();
  check(runtime.destroy_stream(kDevice, stream));
}

}  // namespace

int run_threads(int size) {
  const std::shared_ptr<Store> store = make_memory_store();
  std::vector<std::thread> ranks;
  for (Rank rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      const CommunicatorOptions options{.timeout = std::chrono::seconds(60),
                                        .select = "all_reduce[memory=cuda]:0-inf=two_shot,0-64k=packet"};
      Communicator comm = value_of(Communicator::create(store, rank, size, options));
      run_rank(comm);
    });
  for (std::thread& rank : ranks) rank.join();
  return 0;
}

}  // namespace accord::bench
