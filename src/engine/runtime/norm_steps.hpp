#pragma once
// What the steps that end in a norm have in common.

#include <optional>

#include "engine/runtime/preparation.hpp"

namespace accord::engine {

enum class NormKind : std::uint8_t { kLayer, kRms };

/// Weight and bias of a norm over the last dimension, and what is added to each of its rows first; of the dtype of its rows.
struct NormWeights {
  std::optional<Tensor> weight;
  std::optional<Tensor> bias;
  std::optional<Tensor> addend;
  float eps = 0.0F;
};

/// y = norm(x [+ addend] [+ residual]), sum = what is normalized, if asked for. All of one dtype.
struct Norm {
  NormKind kind = NormKind::kRms;
  RowTensor x;
  std::optional<RowTensor> residual;
  NormWeights weights;
  Tensor y;
  std::optional<Tensor> sum;
};

/// Has 16-bit floats seen as float32 unless the tensors that are named, and the outputs, are all of one dtype.
Status see_one_dtype(Preparation& op, std::initializer_list<std::string_view> names);

/// Of rows like `input`. kUnsupported unless the norm is over the last dimension.
Result<NormWeights> norm_weights(Preparation& op, NormKind kind, const Tensor& input);

Status run_norm(const Norm& norm, const Execution& execution);

}  // namespace accord::engine
