#pragma once
// all_reduce as part of a step, either of the elements as they are or in 8-bit codes.

#include "engine/program/preparation.hpp"
#include "engine/program/tensor.hpp"

namespace accord::engine {

/// Combines contiguous `input` over the ranks of a group into `output`, which is either the same tensor or disjoint
/// from it.
struct AllReduce {
  int group = 0;
  ReduceOp op = ReduceOp::kSum;
  Tensor input;
  Tensor output;
};

/// Returns whether the all_reduce of the current node is done in codes: the engine was loaded that way, and it is a
/// sum of floats that is large enough and not marked "exact" by the node.
///
/// A sum in codes: each rank encodes the elements that the other ranks add up, in groups of kernels::kCodeGroup
/// neighbors that share a scale. It adds its own piece in float32, in the order of the ranks, and sends the sums in
/// codes as well. All ranks therefore end with the same bits. An element's error is at most 1/127 of the sum, over
/// the ranks, of the largest magnitudes in its group.
Result<bool> is_in_codes(const Preparation& op, const AllReduce& call);

/// Returns the step that does the all_reduce of the current node. Errors name the node's place in the model.
Result<Step> all_reduce_step(Preparation& op, const AllReduce& call);

/// Combines the elements as they are.
Status run_all_reduce(const AllReduce& call, Communicator& communicator, const Execution& execution);

/// Encodes all elements of x, which are floats without gaps, as groups. The groups of `codes` that are left over are
/// zeros.
struct EncodeCall {
  Tensor x;
  Tensor codes;  ///< bytes
};

/// Adds up the parts that `received` consists of, one of each rank of the group, and writes the encoded sums into the
/// part of `sums` that belongs to this rank.
struct SumCodesCall {
  int group = 0;
  int ranks = 0;
  Tensor received;
  Tensor sums;  ///< laid out like `received`
};

/// Decodes all elements of y, which are floats without gaps.
struct DecodeCall {
  Tensor codes;
  Tensor y;
};

}  // namespace accord::engine
