// Runs all_reduce by a plan from a file: accord run -n 2 own_plan plan.json
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

#include "accord/communicator.hpp"
#include "accord/plan.hpp"

namespace {

int fail(const accord::Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::ifstream file(argc > 1 ? argv[1] : "plan.json");
  const std::string json(std::istreambuf_iterator<char>(file), {});
  if (const accord::Status status = accord::register_plan(json, {.name = "mine"}); !status.ok()) return fail(status);

  accord::CommunicatorOptions options;
  options.select = "all_reduce:0-64k=mine";  // like a built-in algorithm; ACCORD_SELECT also works
  accord::Result<accord::Communicator> comm = accord::Communicator::from_environment(options);
  if (!comm.ok()) return fail(comm.status());

  std::vector<float> values(1000, static_cast<float>(comm->rank() + 1));
  const accord::Buffer buffer{values.data(), values.size(), accord::DType::kFloat32};
  const accord::Status status = comm->all_reduce(buffer, accord::ReduceOp::kSum);
  if (!status.ok()) return fail(status);
  std::printf("rank %d of %d: %g\n", comm->rank(), comm->size(), values[0]);
}
