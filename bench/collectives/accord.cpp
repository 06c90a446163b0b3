// accord's ranks in the collectives benchmark.
#include <cstdlib>
#include <string>
#include <vector>

#include "accord/communicator.hpp"
#include "bench/worker.hpp"

namespace {

using namespace accord;

std::string measure(Communicator& comm, const bench::Command& command) {
  const std::size_t count = command.bytes / sizeof(float);
  const std::size_t ranks = static_cast<std::size_t>(comm.size());
  std::vector<float> input(count, 1), output(count * ranks);
  const Buffer one{input.data(), count, DType::kFloat32};
  const Buffer all{output.data(), count * ranks, DType::kFloat32};
  const Buffer part{output.data(), count / ranks, DType::kFloat32};
  const Buffer parts{input.data(), count / ranks * ranks, DType::kFloat32};
  const auto call = [&]() -> Status {
    if (command.collective == "all_reduce")
      return comm.all_reduce(ConstBuffer(one), Buffer{output.data(), count, DType::kFloat32}, ReduceOp::kSum);
    if (command.collective == "all_reduce_in_place") return comm.all_reduce(one, ReduceOp::kSum);
    if (command.collective == "all_gather") return comm.all_gather(one, all);
    if (command.collective == "reduce_scatter") return comm.reduce_scatter(parts, part, ReduceOp::kSum);
    if (command.collective == "all_to_all")
      return comm.all_to_all(parts, Buffer{output.data(), parts.count, DType::kFloat32});
    if (command.collective == "broadcast") return comm.broadcast(one, 0);
    if (command.collective == "reduce")
      return comm.reduce(ConstBuffer(one), Buffer{output.data(), count, DType::kFloat32}, ReduceOp::kSum, 0);
    return comm.barrier();
  };
  Status status = comm.barrier();
  const double microseconds = bench::time_of(command.iterations, [&] {
    if (status.ok()) status = call();
  });
  return status.ok() ? std::to_string(microseconds) : "error " + status.to_string();
}

}  // namespace

int main(int, char** argv) {
  accord::bench::pin_to_core(std::atoi(std::getenv("RANK")));
  accord::Result<accord::Communicator> comm = accord::Communicator::from_environment();
  if (!comm.ok()) {
    std::fprintf(stderr, "%s\n", comm.status().to_string().c_str());
    return 1;
  }
  return accord::bench::serve(std::string(argv[1]) + "." + std::to_string(comm->rank()),
                              [&](const accord::bench::Command& command) { return measure(*comm, command); });
}
