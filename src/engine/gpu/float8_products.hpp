#pragma once
// Weights that stay float8_e4m3fn on a device, and products of such weights with more rows than a FewRowsProduct
// takes.
//
// Such a weight [out, in], or [experts, out, in], is a tensor of that dtype without gaps, followed in the same memory
// by its scales: float32 [out], or [experts, out] (float8_bytes). The value of an element is the element times the
// scale of its output. If groups of inputs have scales (Tensor::scale_group), these are [groups, out], or
// [experts, groups, out]: neighboring outputs, which kernels compute together, have neighboring scales.

#include <optional>

#include "base/rounding.hpp"
#include "engine/gpu/kernels/product_kernel.hpp"
#include "engine/gpu/library_product.hpp"

namespace accord::engine {

/// The memory of a float8 weight.
struct Float8Bytes {
  std::size_t scales = 0;  ///< where they begin
  std::size_t all = 0;
};
/// `out`: the outputs of all experts. `groups`: the scales of one output.
inline Float8Bytes float8_bytes(std::int64_t out, std::int64_t in, std::int64_t groups) {
  const std::size_t scales = round_up(static_cast<std::size_t>(out * in), std::size_t{256});
  return {scales, scales + static_cast<std::size_t>(out * groups) * sizeof(float)};
}

inline bool is_float8(const Tensor& tensor) { return tensor.dtype == DType::kFloat8E4M3FN; }
/// Returns all scales of a float8 weight, as one dimension.
Tensor scales_of(const Tensor& weight);

/// Returns a weight without gaps as kernels take it, with its scales if it is float8.
WeightOperand weight_operand(const Execution& execution, const Tensor& weight);

/// Rows of float8 with a scale for each: float32 [rows].
struct RoundedRows {
  Tensor elements, scales;
};
/// Rounds x [rows, width] with the kernel RoundRows. REQUIRES: width is a multiple of 16.
Result<RoundedRows> round_rows(Preparation& op, const Tensor& x);

/// How the device's library multiplies rounded rows.
enum class Float8Product : std::uint8_t {
  kNone,
  kScaled,  ///< both float8, with the scales of rows and outputs
  kSums,    ///< both float8, to float32: a kernel applies scales and bias afterwards
};

/// Returns the best kind that the library supports for `rows` rows and this weight; kNone also for a weight of
/// another dtype, and for scales of groups. The library is asked when a program is prepared, so that no run finds out
/// that a kernel is missing.
Result<Float8Product> float8_product_of(Preparation& op, std::int64_t rows, const Tensor& weight, const Tensor& c,
                                        const std::optional<Tensor>& bias);

/// c = x * weight^T + bias, with x and weight in float8, summed in float32. REQUIRES: `kind` is the result of
/// float8_product_of(), and not kNone.
Status add_float8_product(Preparation& op, Float8Product kind, const RoundedRows& x, const Tensor& weight,
                          const Tensor& c, const std::optional<Tensor>& bias);

/// c = epilogue(x * weight^T + bias) for x of float32, bfloat16 or float16. Widens the weight to that dtype and
/// multiplies it, some outputs at a time, all in the same scratch buffer.
Status add_widened_product(Preparation& op, const Tensor& x, const Tensor& weight, const Tensor& c,
                           const ProductOptions& options);

}  // namespace accord::engine
