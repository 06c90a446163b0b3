// accord's ranks in the engine benchmark: a MiniLM package, over as many ranks as WORLD_SIZE says. A command's "collective"
// is the shape of the batch, "8x128"; its bytes are not used. Token ids run through the vocabulary, nothing is masked.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "accord/communicator.hpp"
#include "accord/engine.hpp"
#include "worker.hpp"

namespace {

using namespace accord;

std::string measure(EngineContext& context, Communicator& comm, const bench::Command& command) {
  const std::size_t cross = command.collective.find('x');
  const std::int64_t batch = std::stoll(command.collective);
  const std::int64_t length = std::stoll(command.collective.substr(cross + 1));
  std::vector<std::int64_t> ids(static_cast<std::size_t>(batch * length));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i * 7919 % 30000);
  std::vector<std::int64_t> mask(ids.size(), 1);
  const TensorView inputs[] = {{{ids.data(), ids.size(), DType::kInt64, {}}, {batch, length}},
                               {{mask.data(), mask.size(), DType::kInt64, {}}, {batch, length}}};
  Status status = comm.barrier();
  const double microseconds = bench::time_of(command.iterations, [&] {
    if (status.ok()) status = context.run(inputs).status();
  });
  return status.ok() ? std::to_string(microseconds / 1000) : "error " + status.to_string();
}

}  // namespace

int main(int, char** argv) {
  accord::bench::pin_to_core(std::atoi(std::getenv("RANK")));
  accord::Result<accord::Communicator> comm = accord::Communicator::from_environment();
  if (!comm.ok()) {
    std::fprintf(stderr, "%s\n", comm.status().to_string().c_str());
    return 1;
  }
  accord::Result<accord::Engine> engine = accord::Engine::load_and_bind(argv[1], {{"tp", *comm}}, {.threads = 1});
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().to_string().c_str());
    return 1;
  }
  accord::Result<accord::EngineContext> context = engine->create_context();
  if (!context.ok()) {
    std::fprintf(stderr, "%s\n", context.status().to_string().c_str());
    return 1;
  }
  return accord::bench::serve(std::string(argv[2]) + "." + std::to_string(comm->rank()),
                              [&](const accord::bench::Command& command) { return measure(*context, *comm, command); });
}
