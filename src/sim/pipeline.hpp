#pragma once
// The order in which a stage of a pipeline works on microbatches.

#include <vector>

namespace accord::sim {

struct PipelineItem {
  bool is_forward = true;
  int microbatch = 0;
  int chunk = 0;  ///< of the layers of the stage
  bool operator==(const PipelineItem&) const = default;
};

/// One forward, one backward (1F1B): after some forward passes, backward and forward passes alternate. With several
/// chunks it is Megatron's interleaved order ("Efficient large-scale language model training on GPU clusters using
/// Megatron-LM", Narayanan et al. 2021), in which `microbatches` is a multiple of `stages`.
std::vector<PipelineItem> pipeline_order(int stage, int stages, int chunks, int microbatches);

}  // namespace accord::sim
