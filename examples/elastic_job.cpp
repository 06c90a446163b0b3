// A job that goes on when ranks die: accord run --elastic 1:4 ./elastic_job
#include <cstdint>

#include "accord/elastic.hpp"

int main() {
  accord::Result<accord::ElasticGroup> elastic = accord::ElasticGroup::from_environment();
  if (!elastic.ok()) return 1;
  std::int64_t steps = -1;  // nothing that others could use
  while (true) {
    auto formed = elastic->form();
    if (!formed.ok()) return 1;
    if (!*formed) return 0;  // another rank has finished the job
    accord::Communicator communicator = **formed;
    const accord::Result<accord::Rank> source = elastic->most_advanced(steps);
    accord::Buffer state{&steps, 1, accord::DType::kInt64};
    if (!source.ok() || !communicator.broadcast(state, *source).ok()) continue;  // a rank has died: form again
    for (steps = steps < 0 ? 0 : steps; steps < 1000; ++steps) {
      const accord::Result<bool> others_wait = elastic->others_wait();
      if (!others_wait.ok() || *others_wait || !communicator.barrier().ok()) break;  // the work of a step
    }
    if (steps == 1000) return elastic->finish().ok() ? 0 : 1;
  }
}
