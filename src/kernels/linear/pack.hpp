#pragma once
// Making packed weights: at export, or when weights are loaded from another format.

#include <cstddef>
#include <cstdint>
#include <span>

#include "accord/status.hpp"
#include "kernels/linear/format.hpp"

namespace accord::kernels {

/// A weight [out, in] as a model has it: element (o, i) lies o * out_stride + i * in_stride elements after the first, so that
/// a transposed weight can be given too. kFloat32, kBFloat16 or kFloat16.
struct WeightSource {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t out = 0, in = 0;
  std::int64_t out_stride = 0, in_stride = 1;
  /// [out] or [out][groups], of kFloat8 alone: float8_scale() of the largest magnitude. Given, as blocks of one output have to share it.
  const float* scales = nullptr;
};

/// What rounding did to a weight.
struct PackError {
  double largest = 0.0;   ///< largest |packed - given|
  double relative = 0.0;  ///< root of sum (packed - given)^2 / sum given^2; 0 if all are zero
};

/// Packs outputs [first, last) of `source`; `first` is a multiple of kPanelWidth, `last` too or all. `to` is the memory of the
/// whole weight, packed_bytes(format, out, in). Quantizes by the largest magnitude (kInt8, kInt4) or by smallest and largest
/// value (with minima) of each group, to nearest; values beyond a 16-bit float's range become infinities, beyond 448 scales of kFloat8 that.
/// Several threads may pack different outputs of one weight.
/// kInvalidArgument for wrong sizes or dtypes, a NaN or an infinity in a weight to be quantized, or a scale that exceeds its
/// type. Cost: one pass, two if it quantizes.
Result<PackError> pack(const WeightSource& source, const PackedFormat& format, std::int64_t first, std::int64_t last,
                       std::span<std::byte> to);
Result<PackError> pack(const WeightSource& source, const PackedFormat& format, std::span<std::byte> to);

/// A weight that is quantized already, row-major: packed as it is.
struct QuantizedSource {
  std::int64_t out = 0, in = 0;
  const std::uint8_t* codes = nullptr;  ///< [out][in], as format.hpp defines them; of kFloat8 the elements
  const float* scales = nullptr;        ///< [out][groups of in], of kFloat8 without groups [out]
  const float* minima = nullptr;        ///< the same, if the format has them
};
/// kInvalidArgument for wrong sizes, codes or a scale or minimum that its type does not hold exactly.
Status pack(const QuantizedSource& source, const PackedFormat& format, std::span<std::byte> to);

/// The weights [weights.out(), weights.in()] as fp32, row-major: scale * (code - zero) + minimum, of kFloat8 scale * element, in fp32.
void unpack(const PackedMatrix& weights, float* to);
/// Outputs [first, last) of them, each [weights.in()] of a real dtype, in their places of `to`, which is the memory of all.
void unpack(const PackedMatrix& weights, std::int64_t first, std::int64_t last, DType dtype, std::span<std::byte> to);
/// Those of one output, [weights.in()]: a row of an embedding that is also the weight of a product. Allocates nothing. Cost: a
/// cache line for each word of 32 bits (each element of 16 for kFloat16).
void unpack_output(const PackedMatrix& weights, std::int64_t output, float* to);

}  // namespace accord::kernels
