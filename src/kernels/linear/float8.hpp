#pragma once
// Weights of float8_e4m3fn, row-major with a scale for each output, or for each group of its inputs (format.hpp): what pack.hpp does for the
// other formats.

#include <cmath>

#include "kernels/linear/pack.hpp"

namespace accord::kernels {

inline constexpr float kLargestFloat8 = 448.0F;

/// By which numbers up to `largest` are divided to fit into float8_e4m3fn.
inline float float8_scale(float largest) { return largest / kLargestFloat8; }

/// One output's part of a block.
struct Float8Row {
  std::byte* scales = nullptr;  ///< of the block, floats at any address
  std::uint8_t* elements = nullptr;
  std::int64_t in = 0, group = 0, groups = 1;  ///< inputs, how many share a scale, and scales

  float scale(std::int64_t input) const;
};
/// Output `output` of a block [out, in] of kFloat8 that begins at `block`.
Float8Row float8_row(const PackedFormat& format, std::byte* block, std::int64_t out, std::int64_t in,
                     std::int64_t output);

/// Writes `row` divided by its scales and rounded to nearest even (zeros for a scale of zero), and what that stands for to `back`.
/// False if a number or a scale is not finite, or a scale below zero.
bool pack_float8_row(const float* row, const float* scales, const Float8Row& to, float* back);

/// As pack() of pack.hpp; REQUIRES: sizes and memory that it has checked.
Status pack_float8(const QuantizedSource& source, const PackedFormat& format, std::span<std::byte> to);

/// unpack_output() of pack.hpp.
void unpack_float8_output(const PackedMatrix& weights, std::int64_t output, float* to);

/// The elements [weights.out(), weights.in()], row-major without gaps, and the scales [weights.out()], or [weights.out()][groups]. False if
/// blocks of the same outputs have different scales, without groups.
/// REQUIRES: blocks that follow each other along `in` have whole groups.
bool copy_float8(const PackedMatrix& weights, std::uint8_t* elements, float* scales);

}  // namespace accord::kernels
