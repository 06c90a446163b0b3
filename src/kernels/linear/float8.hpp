#pragma once
// Row-major weights of float8_e4m3fn with a scale per output or per group of its inputs (format.hpp). Does for this
// format what pack.hpp does for the others.

#include <cmath>

#include "kernels/linear/pack.hpp"

namespace accord::kernels {

inline constexpr float kLargestFloat8 = 448.0F;

/// The divisor that makes numbers up to `largest` fit into float8_e4m3fn.
inline float float8_scale(float largest) { return largest / kLargestFloat8; }

/// One output's row of a block.
struct Float8Row {
  std::byte* scales = nullptr;  ///< the row's scales: floats at any alignment
  std::uint8_t* elements = nullptr;
  std::int64_t in = 0, group = 0, groups = 1;  ///< number of inputs, inputs per scale (0: all), number of scales

  float scale(std::int64_t input) const;
};
/// Returns output `output` of the kFloat8 block [out, in] that begins at `block`.
Float8Row float8_row(const PackedFormat& format, std::byte* block, std::int64_t out, std::int64_t in,
                     std::int64_t output);

/// Divides `row` by its scales, rounds to nearest even (zeros if a scale is zero) and writes the result to `to`.
/// Writes the values that it represents to `back`. Returns false if a number or a scale is not finite, or if a scale
/// is below zero.
bool pack_float8_row(const float* row, const float* scales, const Float8Row& to, float* back);

/// Like pack() of pack.hpp. REQUIRES: the caller has checked sizes and memory.
Status pack_float8(const QuantizedSource& source, const PackedFormat& format, std::span<std::byte> to);

/// Implements unpack_output() of pack.hpp.
void unpack_float8_output(const PackedMatrix& weights, std::int64_t output, float* to);

/// Copies the elements [weights.out(), weights.in()], row-major without gaps, and the scales, [weights.out()] or
/// [weights.out()][groups]. Returns false if, without groups, blocks of the same outputs have different scales.
/// REQUIRES: blocks that follow each other along `in` have whole groups.
bool copy_float8(const PackedMatrix& weights, std::uint8_t* elements, float* scales);

}  // namespace accord::kernels
