#include "sim/pipeline.hpp"

#include <algorithm>

namespace accord::sim {
namespace {

// The number-th pass: `stages` microbatches go through a chunk before the next one.
PipelineItem item(bool is_forward, int number, int stages, int chunks) {
  const int group = stages * chunks;
  const int chunk = number % group / stages;
  const int microbatch = number / group * stages + number % stages;
  return {is_forward, chunks == 1 ? number : microbatch, is_forward ? chunk : chunks - 1 - chunk};
}

}  // namespace

std::vector<PipelineItem> pipeline_order(int stage, int stages, int chunks, int microbatches) {
  const int total = microbatches * chunks;
  int ahead = stages - stage - 1;
  if (chunks > 1) ahead = 2 * ahead + (chunks - 1) * stages;
  ahead = std::min(ahead, total);
  std::vector<PipelineItem> order;
  for (int number = 0; number < total + ahead; ++number) {
    if (number < total) order.push_back(item(true, number, stages, chunks));
    if (number >= ahead) order.push_back(item(false, number - ahead, stages, chunks));
  }
  return order;
}

}  // namespace accord::sim
