#pragma once
// Packed weights: one layout for products with one row and with many, in memory or in a mapped file.
//
// A weight [out, in] is split into panels of 64 outputs. The last panel holds the rest, rounded up to a multiple of
// 16 (the outputs that pad it are zeros). Panels are stored one after the other. Within a panel the weights are
// ordered along `in`, so that one pass over contiguous memory computes 64 outputs:
//
//   kFloat32, kFloat16   [in][width] elements
//   kBFloat16            [in / 2][width] words of 32 bits: inputs k (low half) and k + 1 of an output
//   kInt8                for each group of inputs: scales [width], then [group / 4][width] words: inputs k, k + 2,
//                        k + 1, k + 3 from the lowest byte up, each as code = q + 128
//   kInt4                for each group: scales [width], minima [width] if any, then [group / 8][width] words: the
//                        code of input k + i in the four bits from 4 * (i / 2) + 16 * (i % 2) up
//   kInt6, kInt5         like kInt4 for the lowest four bits of a code. Each 16 (kInt6) or 32 (kInt5) inputs are
//                        followed by words [width] of the h = 2 (1) highest bits: those of input 8 * n + i, whose
//                        other bits begin at s, begin at 8 * (s / 8) + h * (2 * n + s % 8 / 4)
//   kTable4              like kInt4
//
// Scales and minima are floats, or with scales of type kInt8 integers of 8 bits that are multiplied by a float16. Then
// each 256 inputs are a super-group (the last of a panel may be shorter). The panel begins with float16 scales [width]
// of each super-group's scales, followed by those of its minima [width] if there are any.
//
// `in` is padded to whole words, or to whole groups, with weights of value zero. Everything is little-endian.
//
// kFloat8 has no panels, because no product on the CPU reads it. It stores scales [out] in float32, or with groups
// [out][groups of in], and then [out][in] elements of float8_e4m3fn. Each element is multiplied by the scale of its
// output or of its output's group (float8.hpp).
//
// A quantized weight is scale * (code - zero) + minimum, computed in fp32. Codes of b bits are 0 .. 2^b - 1. Zero is
// 2^(b - 1) without minima (GGUF's Q8_0 and Q4_0; with scales of scales, Q6_K), and 0 with minima (GGUF's Q4_1; with
// scales of scales, Q4_K and Q5_K). A weight of kTable4 is scale * table[code] (bitsandbytes' nf4 and fp4, MXFP4, and
// GGUF's IQ4_NL; with scales of scales, IQ4_XS).

#include <array>
#include <cstddef>
#include <cstdint>

#include "accord/buffer.hpp"
#include "accord/status.hpp"

namespace accord::kernels {

enum class WeightType : std::uint8_t { kFloat32, kBFloat16, kFloat16, kInt8, kInt6, kInt5, kInt4, kTable4, kFloat8 };
constexpr int kPanelTypes = 8;  ///< the types before kFloat8, which have panels
enum class Minimum : std::uint8_t { kNone, kPerGroup };

struct PackedFormat {
  WeightType type = WeightType::kFloat32;
  /// Inputs that share a scale: 32, 64 or 128 for codes, or 16 for kInt6, kInt4 and kTable4; 16, 32, 64, 128 or 0 (the
  /// whole output) for kFloat8; 0 for other types.
  int group = 0;
  Minimum minimum = Minimum::kNone;  ///< kPerGroup for kInt8, kInt5 and kInt4 only
  /// Of scales and minima: kFloat16, kFloat32 or, for integers that a super-group's float16 multiplies, kInt8. Only
  /// kFloat32 for kFloat8.
  DType scale_type = DType::kFloat16;
  std::array<float, 16> table{};  ///< kTable4: the number that each code stands for; zeros for other types
  bool operator==(const PackedFormat&) const = default;

  /// True if weights are stored as codes in groups.
  bool quantized() const { return type >= WeightType::kInt8 && type <= WeightType::kTable4; }
  /// True if packed weights may differ from the given ones because they were rounded to codes or to float8.
  bool rounded() const { return quantized() || type == WeightType::kFloat8; }
  /// Number of scales per output with `in` inputs.
  std::int64_t scales_of(std::int64_t in) const { return group == 0 ? 1 : (in + group - 1) / group; }
  /// Bits per weight, without scales.
  int bits() const;
  /// Number of codes; 0 for types without.
  int codes() const { return quantized() ? 1 << bits() : 0; }
  /// The code that represents zero; 0 with minima. For a table, what integer products add to its integers.
  int zero() const { return type == WeightType::kTable4 ? 128 : minimum == Minimum::kNone ? codes() / 2 : 0; }
  /// True if codes stand for integers from -128 up that have at most 8 bits, so that integers can multiply them.
  bool has_integers() const;
  /// True if the scales of groups are multiples of their super-group's.
  bool has_super_groups() const { return quantized() && scale_type == DType::kInt8; }
  /// Number of super-groups per output with `in` inputs; 0 for formats without.
  std::int64_t super_groups_of(std::int64_t in) const;
};

/// Fails with kInvalidArgument if the format is invalid.
Status check(const PackedFormat& format);

/// Returns the format that stores weights of a real dtype (float32, bfloat16, float16) unchanged.
PackedFormat format_of(DType dtype);

constexpr std::int64_t kPanelWidth = 64;
constexpr std::int64_t kWidthStep = 16;  ///< every panel's width is a multiple of this
constexpr std::int64_t kSuperGroup = 256;

/// `in` rounded up to whole words or groups.
std::int64_t padded_in(const PackedFormat& format, std::int64_t in);
/// Number of panels for `out` outputs.
std::int64_t panels_of(std::int64_t out);
/// Width of panel `panel`, including padding outputs.
std::int64_t panel_width(std::int64_t out, std::int64_t panel);
/// Bytes of the scales and minima of one group in a panel of width `width`.
std::size_t scale_bytes(const PackedFormat& format, std::int64_t width);
/// Bytes of the scales of one super-group's scales and minima in a panel of width `width`; 0 for formats without.
std::size_t super_scale_bytes(const PackedFormat& format, std::int64_t width);
/// Bytes of `inputs` inputs (whole words and groups) in a panel of width `width`, including the scales of groups.
std::size_t input_bytes(const PackedFormat& format, std::int64_t inputs, std::int64_t width);
/// Bytes of a panel of width `width` with `in` inputs (whole words and groups).
std::size_t panel_bytes(const PackedFormat& format, std::int64_t in, std::int64_t width);
/// Bytes of packed weights [out, in].
std::size_t packed_bytes(const PackedFormat& format, std::int64_t out, std::int64_t in);

/// A view of packed weights in memory that it does not own: a grid of blocks [out_unit, in_unit], each packed
/// separately as described above. Usually there is one block. Several blocks are the units of a sharded tensor as
/// stored in a package; a rank's shard is a range of them. Any address works; a multiple of 64 is best.
struct PackedMatrix {
  PackedFormat format;
  std::int64_t out_unit = 0, in_unit = 0;    ///< size of a block
  std::int64_t out_units = 1, in_units = 1;  ///< number of blocks
  /// Padding outputs and inputs at the end of the last block, with weights of value zero.
  std::int64_t out_padding = 0, in_padding = 0;
  const std::byte* data = nullptr;
  std::int64_t out_unit_stride = 0, in_unit_stride = 0;  ///< bytes from block to block; ignored if there is only one

  std::int64_t out() const { return out_unit * out_units - out_padding; }
  std::int64_t in() const { return in_unit * in_units - in_padding; }
  std::int64_t panels() const { return panels_of(out_unit) * out_units; }
};

/// Returns a view of a weight [out, in] in one block.
PackedMatrix packed_matrix(const PackedFormat& format, std::int64_t out, std::int64_t in, const std::byte* data);

}  // namespace accord::kernels
