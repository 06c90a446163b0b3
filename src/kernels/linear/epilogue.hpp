#pragma once
// What becomes of the sums of a product on their way to memory.

#include <cstdint>

#include "kernels/activation.hpp"
#include "kernels/linear/rows.hpp"

namespace accord::kernels {

/// y = activation(sums + bias) + residual; with a gate y = activation(gate + gate_bias) * (sums + bias) + residual. Computed
/// in fp32, rounded once.
struct EpilogueCall {
  std::int64_t rows = 0, columns = 0;  ///< columns <= kPanelWidth
  const float* sums = nullptr;         ///< [rows][kAccumulatorStride]
  const float* bias = nullptr;         ///< [columns], or nullptr
  const float* gate = nullptr;         ///< as sums, or nullptr
  const float* gate_bias = nullptr;
  Activation activation = Activation::kNone;
  ConstRows residual;  ///< without data: none
  Rows y;              ///< may be the residual
};
void run_epilogue(const EpilogueCall& call);

}  // namespace accord::kernels
