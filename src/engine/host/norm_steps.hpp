#pragma once
// Shared by the steps that end in a norm.

#include <optional>

#include "engine/program/preparation.hpp"

namespace accord::engine {

enum class NormKind : std::uint8_t { kLayer, kRms };

/// Weight and bias of a norm over the last dimension, and an addend that is added to each row first. All have the
/// dtype of the rows.
struct NormWeights {
  std::optional<Tensor> weight;
  std::optional<Tensor> bias;
  std::optional<Tensor> addend;
  float eps = 0.0F;
};

/// y = norm(x [+ addend] [+ residual]); sum = the rows that are normalized, if requested. All have one dtype.
struct Norm {
  NormKind kind = NormKind::kRms;
  RowTensor x;
  std::optional<RowTensor> residual;
  NormWeights weights;
  Tensor y;
  std::optional<Tensor> sum;
};

/// Makes the node see 16-bit floats as float32, unless the named tensors and the outputs all have one dtype.
Status see_one_dtype(Preparation& op, std::initializer_list<std::string_view> names);

/// Reads the weights for rows like `input`. Fails with kUnsupported unless the norm is over the last dimension.
Result<NormWeights> norm_weights(Preparation& op, NormKind kind, const Tensor& input);

Status run_norm(const Norm& norm, const Execution& execution);

}  // namespace accord::engine
