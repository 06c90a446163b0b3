#pragma once
// all_reduce as part of a step, either of the elements as they are or in 8-bit codes.

#include <optional>

#include "engine/graph/graph.hpp"
#include "engine/program/preparation.hpp"
#include "engine/program/tensor.hpp"

namespace accord::engine {

/// Combines contiguous `input` over the ranks of a group into `output`, which is either the same tensor or disjoint
/// from it.
///
/// A sum in codes: each rank encodes the elements that the other ranks add up, in groups of kernels::kCodeGroup
/// neighbors that share a scale. It adds its own piece in float32, in the order of the ranks, and sends the sums in
/// codes as well. All ranks therefore end with the same bits. An element's error is at most 1/127 of the sum, over
/// the ranks, of the largest magnitudes in its group.
struct AllReduce {
  int group = 0;
  ReduceOp op = ReduceOp::kSum;
  Tensor input;
  Tensor output;
  struct Codes {
    Tensor sent;      ///< bytes: the groups of each rank
    Tensor received;  ///< laid out like `sent`
    int ranks = 0;
  };
  std::optional<Codes> codes = std::nullopt;
  bool by_itself = false;  ///< a step that follows is not fused into its kernel
  const Node* node = nullptr;
};

/// Completes the all_reduce of the current node. It is done in codes if the engine was loaded that way and it is a
/// sum of floats that is large enough and not marked "exact" by the node.
Result<AllReduce> prepare_step(Preparation& op, AllReduce given);

/// Errors name the node's place in the model.
Status run_step(const AllReduce& step, const Execution& execution);

}  // namespace accord::engine
