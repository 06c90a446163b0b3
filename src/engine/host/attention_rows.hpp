#pragma once
// Addresses of the rows and the scratch of attention.

#include <span>

#include "engine/program/tensor.hpp"
#include "kernels/attention/paged_cache.hpp"

namespace accord::engine::host {

/// Rows of a tensor [1, heads, rows, dim], from `first_row` on.
inline kernels::ConstTokenRows token_rows(const Execution& execution, const Tensor& tensor, std::int64_t first_row) {
  return {execution.data<const float>(tensor) + first_row * tensor.stride(2), tensor.stride(2), tensor.stride(1)};
}

/// Piece `part` of memory [pieces, floats].
inline std::span<float> scratch_of(const Tensor& pieces, const Execution& execution, int part) {
  return {execution.data<float>(pieces) + part * pieces.size(1), static_cast<std::size_t>(pieces.size(1))};
}

}  // namespace accord::engine::host
