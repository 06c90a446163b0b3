#pragma once
// Calls that compute mixtures of experts. All tensors are contiguous, except weights.

#include <optional>

#include "engine/program/packed_stack.hpp"
#include "engine/program/tensor.hpp"
#include "kernels/expert_gate.hpp"

namespace accord::engine {

/// A weight of each of this rank's experts: [experts, out, in].
struct ExpertWeights {
  Tensor tensor;
  /// The weights, if the CPU has packed them. Then `tensor` has sizes and a dtype, but no elements.
  const PackedStack* packed = nullptr;
};

/// An expert computes down(inner values), which options.activation and the others make from up(x) and gate(x). There
/// is at least one expert.
struct Experts {
  ExpertWeights up;
  std::optional<ExpertWeights> gate;  ///< with the sizes and the dtype of `up`
  ExpertWeights down;
  kernels::GateOptions options;
  std::optional<Tensor> up_bias, gate_bias;  ///< float32 [experts, out of up]

  /// Returns true if the inner values are activation(gate(x)) * up(x), or activation(up(x)).
  bool has_plain_gate() const {
    return !up_bias && !gate_bias && options == kernels::GateOptions{.activation = options.activation};
  }
};

/// Each row of y is the sum of what the experts chosen for the row of the input compute from it, times their weights,
/// in the order of the choices. Each run checks the ids: one outside [0, experts_in_all) makes the run fail, and the
/// error names the node and the id. Of all ranks' experts, this rank has those from `first_expert` on; choices of
/// others are left out.
struct ExpertsCall {
  Experts experts;
  Tensor input;                   ///< [tokens, in]
  Tensor ids;                     ///< [tokens, top_k], int32 or int64
  std::optional<Tensor> weights;  ///< of the choices: [tokens, top_k], float32; without them, all are 1
  std::int64_t first_expert = 0, experts_in_all = 0;
  Tensor y;           ///< [tokens, out]
  bool adds = false;  ///< the sums are added to the values that y has
};

/// The same for rows that were dispatched to this rank: they are sorted by expert, and each has one expert.
struct DispatchedExpertsCall {
  Experts experts;
  Tensor input;    ///< [rows, in]
  Tensor weights;  ///< of the rows: float32
  Tensor first;    ///< int64: where the rows of each expert begin, and where the last ones end
  Tensor y;        ///< [rows, out]; the rows past the last expert's are left as they are
};

}  // namespace accord::engine
