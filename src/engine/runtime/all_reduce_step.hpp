#pragma once
// all_reduce as a part of steps, of numbers as they are or in codes of 8 bits.

#include <optional>

#include "engine/graph/graph.hpp"
#include "engine/runtime/preparation.hpp"
#include "engine/runtime/tensor.hpp"

namespace accord::engine {

/// Combines contiguous `input` over the ranks of a group into `output`, which is the same tensor or apart from it.
///
/// A sum in codes: each rank sends what the others have to add as groups of kernels::kCodeGroup neighbours with a scale, adds in float32, in
/// the order of the ranks, what it has to add itself, and sends the sums in codes, too; so all ranks have the same bits. An
/// element's error is at most 1/127 of what the largest magnitudes of its group add up to over the ranks.
struct AllReduce {
  int group = 0;
  ReduceOp op = ReduceOp::kSum;
  Tensor input;
  Tensor output;
  struct Codes {
    Tensor sent;      ///< bytes: groups of each rank
    Tensor received;  ///< the same
    int ranks = 0;
  };
  std::optional<Codes> codes = std::nullopt;
  bool by_itself = false;  ///< what follows it is no part of its kernel
  const Node* node = nullptr;
};

/// Of the node at hand, in codes if the engine was loaded so and it is a sum of floats, large enough, that the node does not call
/// "exact".
Result<AllReduce> prepare_step(Preparation& op, AllReduce given);

/// Errors name the place of the node in the model.
Status run_step(const AllReduce& step, const Execution& execution);

}  // namespace accord::engine
