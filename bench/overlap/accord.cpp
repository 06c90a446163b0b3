// One rank of the overlap benchmark: an asynchronous all_reduce of 64 MiB, a computation of about the same length,
// and both at once.
#include <cstdlib>
#include <string>
#include <vector>

#include "accord/communicator.hpp"
#include "bench/worker.hpp"

namespace {

using namespace accord;

constexpr std::size_t kElements = 1 << 10;  // for the computation: they fit in the L1 cache

// Multiplies and adds, and uses nothing that an all_reduce needs, except the core. Not inlined, because two copies of
// a loop may differ in speed.
[[gnu::noinline]] float compute(std::vector<float>& values, int turns) {
  for (int turn = 0; turn < turns; ++turn)
    for (float& value : values) value = value * 0.999F + 0.001F;
  return values[kElements / 2];
}

std::string measure(Communicator& comm, const bench::Command& command) {
  const std::size_t count = command.bytes / sizeof(float);
  static std::vector<float> input(count, 1), output(count), values(kElements, 1);
  static int turns = 0;
  volatile float kept = 0;
  if (turns == 0) {  // calibrates the computation to the time of rank 0's all_reduce, so that both take equally long
    const Status status = comm.barrier();
    if (!status.ok()) return "error " + status.to_string();
    const ConstBuffer in(input.data(), count, DType::kFloat32);
    const Buffer out{output.data(), count, DType::kFloat32};
    Status done;
    const double wanted = bench::time_of(5, [&] { done = comm.all_reduce(in, out, ReduceOp::kSum); });
    const double thousand = bench::time_of(5, [&] { kept = compute(values, 1000); });
    double both[2] = {wanted, thousand};
    done = done.ok() ? comm.broadcast(Buffer{both, 2, DType::kFloat64}, 0) : done;
    if (!done.ok()) return "error " + done.to_string();
    turns = static_cast<int>(both[0] / both[1] * 1000) + 1;
  }
  Status status = comm.barrier();
  const double microseconds = bench::time_of(command.iterations, [&] {
    if (!status.ok()) return;
    if (command.collective == "computation") {
      kept = compute(values, turns);
      return;
    }
    Work work = comm.all_reduce_async(ConstBuffer(input.data(), count, DType::kFloat32),
                                      Buffer{output.data(), count, DType::kFloat32}, ReduceOp::kSum);
    if (command.collective == "together") kept = compute(values, turns);
    status = work.wait();
  });
  return status.ok() ? std::to_string(microseconds) : "error " + status.to_string();
}

}  // namespace

int main(int, char** argv) {
  const int rank = std::atoi(std::getenv("RANK"));
  accord::bench::pin_to_share(rank, accord::bench::number_of("WORLD_SIZE"));
  accord::Result<accord::Communicator> comm = accord::Communicator::from_environment();
  if (!comm.ok()) {
    std::fprintf(stderr, "%s\n", comm.status().to_string().c_str());
    return 1;
  }
  return accord::bench::serve(std::string(argv[1]) + "." + std::to_string(rank),
                              [&](const accord::bench::Command& command) { return measure(*comm, command); });
}
