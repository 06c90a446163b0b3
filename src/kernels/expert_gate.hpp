#pragma once
// The inner values of experts, where they are more than an activation of a product.

#include <cstdint>

#include "kernels/activation.hpp"

namespace accord::kernels {

/// up' = clamp(up + up_bias, -limit, limit) + offset, gate' = min(gate + gate_bias, limit), and the inner value is
/// activation(alpha gate') / alpha up'. Without a gate it is activation(up'). (gpt-oss: silu, limit 7, alpha 1.702,
/// offset 1.)
struct GateOptions {
  Activation activation = Activation::kNone;
  float limit = 0.0F;  ///< 0: none
  float alpha = 1.0F, offset = 0.0F;
  bool operator==(const GateOptions&) const = default;
};

/// Rows of one expert.
struct GateCall {
  GateOptions options;
  std::int64_t rows = 0, width = 0;
  const float* gate_bias = nullptr;  ///< [width], or null: zeros
  const float* up_bias = nullptr;    ///< [width], or null: zeros
  const float* gate = nullptr;       ///< [rows, width], or null: no gate
  float* up = nullptr;               ///< [rows, width]; the inner values replace it
};

/// Runs on the calling thread. Allocates nothing. NaN propagates. Cost: one activation for each value.
void gate_rows(const GateCall& call);

}  // namespace accord::kernels
