#pragma once
// Weights that stay float8_e4m3fn on a device, and products of more rows with them than a FewRowsProduct takes.
//
// Such a weight [out, in] is a tensor of that dtype without gaps, the whole of its memory but for its scales: float32 [out], which lie behind it
// (float8_bytes). An element is worth itself times the scale of its output.

#include <optional>

#include "base/rounding.hpp"
#include "engine/device/library_product.hpp"

namespace accord::engine {

/// Of the memory of a float8 weight.
struct Float8Bytes {
  std::size_t scales = 0;  ///< where they begin
  std::size_t all = 0;
};
inline Float8Bytes float8_bytes(std::int64_t out, std::int64_t in) {
  const std::size_t scales = round_up(static_cast<std::size_t>(out * in), std::size_t{256});
  return {scales, scales + static_cast<std::size_t>(out) * sizeof(float)};
}

inline bool is_float8(const Tensor& tensor) { return tensor.dtype == DType::kFloat8E4M3FN; }
/// REQUIRES: a float8 weight.
Tensor scales_of(const Tensor& weight);

/// Rows of float8 with a scale for each, float32 [rows].
struct RoundedRows {
  Tensor elements, scales;
};
/// x [rows, width] rounded by the kernel RoundRows. REQUIRES: width is a multiple of 16.
Result<RoundedRows> round_rows(Preparation& op, const Tensor& x);

/// Whether the device's library multiplies rounded rows with such a weight: sizes that are multiples of 16.
bool multiplies_float8(const Tensor& weight);

/// c = x * weight^T + bias, both float8, added up in float32. By the library, which takes the scales where it can; else a kernel multiplies with
/// them afterwards.
Status add_float8_product(Preparation& op, const RoundedRows& x, const Tensor& weight, const Tensor& c,
                          const std::optional<Tensor>& bias);

/// c = epilogue(x * weight^T + bias) for x of float32, bfloat16 or float16: some outputs of the weight after the others are brought to that dtype,
/// in memory that serves all, and multiplied.
Status add_widened_product(Preparation& op, const Tensor& x, const Tensor& weight, const Tensor& c,
                           const Extras& extras);

}  // namespace accord::engine
