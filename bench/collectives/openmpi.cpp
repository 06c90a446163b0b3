// The MPI peer of the collectives benchmark.
#include <mpi.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "bench/worker.hpp"

namespace {

std::string measure(const accord::bench::Command& command) {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int count = static_cast<int>(command.bytes / sizeof(float));
  std::vector<float> input(count, 1), output(static_cast<std::size_t>(count) * ranks);
  const auto call = [&] {
    if (command.collective == "all_reduce")
      return MPI_Allreduce(input.data(), output.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (command.collective == "all_gather")
      return MPI_Allgather(input.data(), count, MPI_FLOAT, output.data(), count, MPI_FLOAT, MPI_COMM_WORLD);
    if (command.collective == "reduce_scatter")
      return MPI_Reduce_scatter_block(input.data(), output.data(), count / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (command.collective == "all_to_all")
      return MPI_Alltoall(input.data(), count / ranks, MPI_FLOAT, output.data(), count / ranks, MPI_FLOAT,
                          MPI_COMM_WORLD);
    if (command.collective == "broadcast") return MPI_Bcast(input.data(), count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    return MPI_Barrier(MPI_COMM_WORLD);
  };
  MPI_Barrier(MPI_COMM_WORLD);
  return std::to_string(accord::bench::time_of(command.iterations, [&] { call(); }));
}

}  // namespace

int main(int argc, char** argv) {
  const int rank = std::atoi(std::getenv("OMPI_COMM_WORLD_RANK"));
  accord::bench::pin_to_core(rank);
  MPI_Init(&argc, &argv);
  const int code = accord::bench::serve(std::string(argv[1]) + "." + std::to_string(rank), measure);
  MPI_Finalize();
  return code;
}
