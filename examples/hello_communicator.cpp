// Adds an array over all ranks: accord run -n 2 build/release/examples/hello_communicator
#include <array>
#include <cstdio>

#include "accord/communicator.hpp"

int fail(const accord::Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

int main() {
  auto comm = accord::Communicator::from_environment();
  if (!comm.ok()) return fail(comm.status());

  std::array<float, 4> values;
  values.fill(static_cast<float>(comm->rank() + 1));
  const accord::Buffer buffer{values.data(), values.size(), accord::DType::kFloat32};
  const accord::Status status = comm->all_reduce(buffer, accord::ReduceOp::kSum);  // every rank ends with the same bits
  if (!status.ok()) return fail(status);
  std::printf("rank %d of %d: %g %g %g %g\n", comm->rank(), comm->size(), values[0], values[1], values[2], values[3]);
}
