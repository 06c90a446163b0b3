#pragma once
// Calls that compute norms of rows.

#include <optional>

#include "engine/ops/all_reduce.hpp"
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
struct NormCall {
  NormKind kind = NormKind::kRms;
  RowTensor x;
  std::optional<RowTensor> residual;
  NormWeights weights;
  Tensor y;
  std::optional<Tensor> sum;
};

/// Combines the elements over the ranks as they are, then computes the norm, whose x is the output.
struct AllReduceNormCall {
  AllReduce all_reduce;
  NormCall norm;
};

}  // namespace accord::engine
