#pragma once
// The last step of a product: what is applied to its sums before they are written to memory.

#include <cstdint>

#include "kernels/activation.hpp"
#include "kernels/linear/rows.hpp"

namespace accord::kernels {

/// y = activation(sums + bias) + residual. With a gate, y = activation(gate + gate_bias) * (sums + bias) + residual.
/// Computed in fp32 and rounded once.
struct EpilogueCall {
  std::int64_t rows = 0, columns = 0;  ///< columns <= kPanelWidth
  const float* sums = nullptr;         ///< [rows][kAccumulatorStride]
  const float* bias = nullptr;         ///< [columns], or nullptr
  const float* gate = nullptr;         ///< like sums, or nullptr
  const float* gate_bias = nullptr;
  Activation activation = Activation::kNone;
  ConstRows residual;  ///< without data, no residual is added
  Rows y;              ///< may be the residual's memory
};
void run_epilogue(const EpilogueCall& call);

}  // namespace accord::kernels
