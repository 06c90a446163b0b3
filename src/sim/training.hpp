#pragma once
// A step of training a transformer on many ranks, as a schedule: what Megatron's programs compute and communicate.
//
// Each layer is divided by tensor parallelism (with or without sequence parallelism), long sequences by context
// parallelism, experts by expert parallelism, and layers by a pipeline (1F1B, interleaved with several virtual stages).
// Gradients are reduced over data parallelism, as layers finish or at the end, and the optimizer is distributed or
// not.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "sim/schedule_builder.hpp"

namespace accord::sim {

/// A transformer. Sizes are in elements.
struct TransformerNumbers {
  int layers = 0;
  int hidden = 0;
  int ffn = 0;  ///< of the MLP; 0 if all layers have experts
  int heads = 0;
  int kv_heads = 0;
  int vocabulary = 0;
  bool gated = true;  ///< the MLP has three matrices instead of two
  int experts = 0;    ///< 0: all layers are dense
  int experts_per_token = 0;
  int expert_ffn = 0;
  int dense_layers = 0;  ///< the first layers, which have no experts
};

struct StepNumbers {
  int sequence = 0;        ///< tokens
  int microbatch = 1;      ///< sequences
  int microbatches = 1;    ///< of each data-parallel rank
  int virtual_stages = 1;  ///< of the layers of each rank of a pipeline
  bool sequence_parallel = true;
  bool recompute = false;  ///< the backward pass runs the forward pass again
  bool distributed_optimizer = true;
  bool overlap_gradients = true;  ///< reduce the gradients of a layer as soon as it has them
};

struct TrainingStep {
  TransformerNumbers model;
  StepNumbers step;
};

/// Reads the tables [model] and [step], whose keys are the names above. Errors: as of machine_from_toml().
Result<TrainingStep> training_step_from_toml(std::string_view text);

/// The groups of all ranks, by what they divide. Groups of one rank may be left out.
struct TrainingGroups {
  int tp = 1, cp = 1, pp = 1, ep = 1;
  int dp = 1, expert_dp = 1;  ///< ranks that reduce gradients together: data and context parallel
  int data_ranks = 1;         ///< that have different sequences
  std::vector<Members> tensor, context, expert, data, expert_data;
  std::vector<Members> pipeline;  ///< members by stage; also if there is one stage
};

/// The work of a step, without what it computes again.
struct TrainingAmount {
  double flops = 0;   ///< of all ranks
  double tokens = 0;  ///< of all ranks
};
TrainingAmount amount_of(const TrainingStep& training, const TrainingGroups& groups);

/// The tasks of all ranks. Stream 0 computes and makes the calls that computation waits for, streams 1 and 2 receive
/// and send between stages, stream 3 reduces gradients. Fails with kInvalidArgument if the sizes do not divide each
/// other, or if the machine has no `flops_per_second`.
Result<Schedule> training_schedule(const TrainingStep& training, const TrainingGroups& groups, const Machine& machine,
                                   const topology::Topology& topology, std::size_t slot_bytes);

}  // namespace accord::sim
