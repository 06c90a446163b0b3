// accord's ranks in the engine benchmark: a package, over as many ranks as WORLD_SIZE says. A command's "collective"
// is the shape of a batch for MiniLM, "8x128" (token ids cycle through the vocabulary, nothing is masked), or "sums"
// for a package of sums.py: then the time is that of all ops except products, per layer. A command's bytes are
// not used.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "accord/communicator.hpp"
#include "accord/engine.hpp"
#include "bench/worker.hpp"

namespace {

using namespace accord;

std::string measure_batches(EngineContext& context, Communicator& comm, const bench::Command& command) {
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

struct OpTotals {
  double seconds = 0;
  std::uint64_t products = 0;
};

// Returns the context's measurements of all ops that are not products.
OpTotals totals_of(const EngineContext& context) {
  OpTotals totals;
  for (const OpTime& op : context.profile()) {
    if (op.op.find("linear") == std::string::npos) {
      totals.seconds += op.seconds;
    } else {
      totals.products += op.calls;
    }
  }
  return totals;
}

std::string measure_sums(Engine& engine, EngineContext& context, Communicator& comm, const bench::Command& command) {
  const TensorInfo& info = engine.inputs()[0];
  const auto width = std::stoll(info.shape[1]);
  std::vector<std::byte> hidden(static_cast<std::size_t>(width) * size_of(info.dtype));
  const TensorView input{{hidden.data(), static_cast<std::size_t>(width), info.dtype, {}}, {1, width}};
  Status status = comm.barrier();
  std::vector<double> times;
  context.set_profiling(Profiling::kOn);
  for (int batch = 0; batch < 15; ++batch) {
    const OpTotals before = totals_of(context);
    for (int i = 0; i < command.iterations && status.ok(); ++i) status = context.run({&input, 1}).status();
    const OpTotals after = totals_of(context);
    const auto layers = static_cast<double>(after.products - before.products) / 2;
    times.push_back((after.seconds - before.seconds) * 1e6 / layers);
  }
  std::nth_element(times.begin(), times.begin() + 7, times.end());
  return status.ok() ? std::to_string(times[7]) : "error " + status.to_string();
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
                              [&](const accord::bench::Command& command) {
                                if (command.collective == "sums")
                                  return measure_sums(*engine, *context, *comm, command);
                                return measure_batches(*context, *comm, command);
                              });
}
