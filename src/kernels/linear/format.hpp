#pragma once
// Packed weights: one layout that serves a product of one row and of many, in memory or in a file that is mapped.
//
// A weight [out, in] is cut into panels of 64 outputs; the last panel has what is left, rounded up to a multiple of 16 (the
// outputs that fill it up are zeros). Panels lie one after the other. Within a panel the weights lie along `in`, so that one
// pass over contiguous memory computes 64 outputs:
//
//   kFloat32, kFloat16   [in][width] elements
//   kBFloat16            [in / 2][width] words of 32 bits: inputs k (low half) and k + 1 of an output
//   kInt8                for each group of inputs: scales [width], then [group / 4][width] words: inputs k, k + 2, k + 1, k + 3
//                        from the lowest byte up, each as code = q + 128
//   kInt4                for each group: scales [width], minima [width] if any, then [group / 8][width] words: code of input
//                        k + i in the four bits from 4 * (i / 2) + 16 * (i % 2) up
//
// `in` is padded to whole words, or to whole groups, with weights of value zero. All is little-endian.
//
// kFloat8 has no panels, as no product on the CPU reads it: scales [out] in float32, or with groups [out][groups of in], then [out][in]
// elements of float8_e4m3fn, each to be multiplied with the scale of its output, or of its output's group (float8.hpp).
//
// A quantized weight is scale * (code - zero) + minimum: for kInt8 codes are 0..255 and zero is 128, for kInt4 without
// minima 0..15 and 8 (GGUF's Q4_0), with minima 0..15 and 0 (its Q4_1).

#include <cstddef>
#include <cstdint>

#include "accord/buffer.hpp"
#include "accord/status.hpp"

namespace accord::kernels {

enum class WeightType : std::uint8_t { kFloat32, kBFloat16, kFloat16, kInt8, kInt4, kFloat8 };
enum class Minimum : std::uint8_t { kNone, kPerGroup };

struct PackedFormat {
  WeightType type = WeightType::kFloat32;
  /// Inputs that share a scale: 32, 64 or 128 for kInt8 and kInt4; for kFloat8 these, 16, or 0: all of an output; else 0.
  int group = 0;
  Minimum minimum = Minimum::kNone;    ///< kPerGroup for kInt4 only
  DType scale_type = DType::kFloat16;  ///< of scales and minima: kFloat16 or kFloat32; of kFloat8 kFloat32 alone
  bool operator==(const PackedFormat&) const = default;

  bool quantized() const { return type == WeightType::kInt8 || type == WeightType::kInt4; }  ///< in groups, by codes
  /// Packed weights are other numbers than the given ones.
  bool rounded() const { return quantized() || type == WeightType::kFloat8; }
  /// Scales of an output with `in` inputs.
  std::int64_t scales_of(std::int64_t in) const { return group == 0 ? 1 : (in + group - 1) / group; }
  /// Codes that stand for zero; 0 where codes are no offsets.
  int zero() const { return type == WeightType::kInt8 ? 128 : minimum == Minimum::kNone ? 8 : 0; }
  int codes() const { return type == WeightType::kInt8 ? 256 : 16; }
};

/// kInvalidArgument if there is no such format.
Status check(const PackedFormat& format);

/// The format that keeps weights of a real dtype (float32, bfloat16, float16) as they are.
PackedFormat format_of(DType dtype);

constexpr std::int64_t kPanelWidth = 64;
constexpr std::int64_t kWidthStep = 16;  ///< every panel's width is a multiple of it

/// `in` with the inputs that fill up the last word or group.
std::int64_t padded_in(const PackedFormat& format, std::int64_t in);
/// Panels of `out` outputs.
std::int64_t panels_of(std::int64_t out);
/// Width of panel `panel` of them, with the outputs that fill it up.
std::int64_t panel_width(std::int64_t out, std::int64_t panel);
/// Bytes of scales and minima of one group in a panel of that width.
std::size_t scale_bytes(const PackedFormat& format, std::int64_t width);
/// Bytes of `inputs` inputs (whole words and groups) in a panel of that width, scales included.
std::size_t panel_bytes(const PackedFormat& format, std::int64_t inputs, std::int64_t width);
/// Bytes of packed weights [out, in].
std::size_t packed_bytes(const PackedFormat& format, std::int64_t out, std::int64_t in);

/// Packed weights that lie in memory of somebody else: a grid of blocks [out_unit, in_unit], each packed by itself as above.
/// One block is the usual case; several are the units of a sharded tensor, as they lie in a package, and a rank's shard is
/// a range of them. The address may be anything; a multiple of 64 is best.
struct PackedMatrix {
  PackedFormat format;
  std::int64_t out_unit = 0, in_unit = 0;    ///< size of a block
  std::int64_t out_units = 1, in_units = 1;  ///< number of blocks
  /// Outputs and inputs at the end of the last block that only fill it up: weights of value zero.
  std::int64_t out_padding = 0, in_padding = 0;
  const std::byte* data = nullptr;
  std::int64_t out_unit_stride = 0, in_unit_stride = 0;  ///< bytes from block to block; ignored where there is only one

  std::int64_t out() const { return out_unit * out_units - out_padding; }
  std::int64_t in() const { return in_unit * in_units - in_padding; }
  std::int64_t panels() const { return panels_of(out_unit) * out_units; }
};

/// A weight [out, in] in one block.
PackedMatrix packed_matrix(const PackedFormat& format, std::int64_t out, std::int64_t in, const std::byte* data);

}  // namespace accord::kernels
