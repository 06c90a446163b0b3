#pragma once
// Creates packed weights: at export, or when weights are loaded from another format.

#include <cstddef>
#include <cstdint>
#include <span>

#include "accord/status.hpp"
#include "kernels/linear/format.hpp"

namespace accord::kernels {

/// A weight [out, in] as the model stores it: element (o, i) is at offset o * out_stride + i * in_stride, in
/// elements, so a transposed weight works too. kFloat32, kBFloat16 or kFloat16.
struct WeightSource {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t out = 0, in = 0;
  std::int64_t out_stride = 0, in_stride = 1;
  /// [out] or [out][groups], for kFloat8 only: float8_scale() of the largest magnitude. The caller passes the scales
  /// because all blocks of an output must share them.
  const float* scales = nullptr;
};

/// The rounding error of a packed weight.
struct PackError {
  double largest = 0.0;   ///< largest |packed - given|
  double relative = 0.0;  ///< sqrt(sum (packed - given)^2 / sum given^2); 0 if all weights are zero
};

/// Packs outputs [first, last) of `source`. `first` must be a multiple of kPanelWidth; so must `last`, unless it is
/// the number of outputs. `to` is the memory of the whole weight, packed_bytes(format, out, in).
/// Quantizes each group to nearest by its largest magnitude or by its smallest and largest value (with minima). With
/// super-groups the scales are then rounded to integer multiples of the largest one / 127. Values beyond the range of a
/// 16-bit float become infinities; in kFloat8, values beyond 448 scales become 448 scales. Several threads may pack
/// different outputs of one weight. Fails with kInvalidArgument for wrong sizes or dtypes, for a NaN or an infinity in
/// a weight to be quantized, and for a scale that exceeds its type. Cost: one pass, or two if it quantizes.
Result<PackError> pack(const WeightSource& source, const PackedFormat& format, std::int64_t first, std::int64_t last,
                       std::span<std::byte> to);
Result<PackError> pack(const WeightSource& source, const PackedFormat& format, std::span<std::byte> to);

/// A weight that is already quantized, row-major. It is packed unchanged.
struct QuantizedSource {
  std::int64_t out = 0, in = 0;
  const std::uint8_t* codes = nullptr;  ///< [out][in], as defined in format.hpp; the elements for kFloat8
  const float* scales = nullptr;        ///< [out][groups of in]; [out] for kFloat8 without groups
  const float* minima = nullptr;        ///< same shape, if the format has minima
  const float* super_scales = nullptr;  ///< [out][super-groups of in], if the format has them: multiply the scales
  const float* super_minima = nullptr;  ///< same shape, if the format also has minima: multiply the minima
};
/// Fails with kInvalidArgument for wrong sizes, for invalid codes, and for a scale or minimum that its type cannot
/// represent exactly.
Status pack(const QuantizedSource& source, const PackedFormat& format, std::span<std::byte> to);

/// Writes the weights [weights.out(), weights.in()] as fp32, row-major: scale * (code - zero) + minimum,
/// or scale * element for kFloat8, computed in fp32.
void unpack(const PackedMatrix& weights, float* to);
/// Unpacks outputs [first, last), each [weights.in()] of the real dtype `dtype`, to their positions in `to`, which
/// has room for all outputs.
void unpack(const PackedMatrix& weights, std::int64_t first, std::int64_t last, DType dtype, std::span<std::byte> to);
/// Unpacks one output, [weights.in()]: a row of an embedding that is also the weight of a product. Allocates nothing.
/// Cost: one cache line per 32-bit word (per 16-bit element for kFloat16).
void unpack_output(const PackedMatrix& weights, std::int64_t output, float* to);

}  // namespace accord::kernels
