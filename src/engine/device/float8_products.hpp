#pragma once
// Weights that stay float8_e4m3fn on a device, and products of more rows with them than a FewRowsProduct takes.
//
// Such a weight [out, in], or [experts, out, in], is a tensor of that dtype without gaps, the whole of its memory but for its scales: float32 [out], or
// [experts * out], which lie behind it (float8_bytes). An element is worth itself times the scale of its output.

#include <optional>

#include "base/rounding.hpp"
#include "engine/device/library_product.hpp"
#include "engine/device/product_kernel.hpp"

namespace accord::engine {

/// Of the memory of a float8 weight; out: of all experts.
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

/// A weight without gaps as kernels take it, with its scales if it is float8.
WeightOperand weight_operand(const Execution& execution, const Tensor& weight);

/// Rows of float8 with a scale for each, float32 [rows].
struct RoundedRows {
  Tensor elements, scales;
};
/// x [rows, width] rounded by the kernel RoundRows. REQUIRES: width is a multiple of 16.
Result<RoundedRows> round_rows(Preparation& op, const Tensor& x);

/// What the device's library multiplies rounded rows with.
enum class Float8Product : std::uint8_t {
  kNone,
  kScaled,  ///< both float8, with the scales of rows and outputs
  kSums,    ///< both float8, to float32: a kernel applies scales and bias afterwards
};

/// The best that the library has for `rows` rows of a weight, kNone also for a weight of another dtype; asked when a program is prepared, so that no
/// run finds out.
Result<Float8Product> float8_product_of(Preparation& op, std::int64_t rows, const Tensor& weight, const Tensor& c,
                                        const std::optional<Tensor>& bias);

/// c = x * weight^T + bias, both float8, added up in float32. REQUIRES: kind is what float8_product_of() said, and not kNone.
Status add_float8_product(Preparation& op, Float8Product kind, const RoundedRows& x, const Tensor& weight,
                          const Tensor& c, const std::optional<Tensor>& bias);

/// c = epilogue(x * weight^T + bias) for x of float32, bfloat16 or float16: some outputs of the weight after the others are brought to that dtype,
/// in memory that serves all, and multiplied.
Status add_widened_product(Preparation& op, const Tensor& x, const Tensor& weight, const Tensor& c,
                           const Extras& extras);

}  // namespace accord::engine
