#pragma once
// Weights of float8_e4m3fn, row-major with a scale for each output (format.hpp): what pack.hpp does for the other formats.

#include <cmath>

#include "kernels/linear/pack.hpp"

namespace accord::kernels {

inline constexpr float kLargestFloat8 = 448.0F;

/// By which numbers up to `largest` are divided to fit into float8_e4m3fn.
inline float float8_scale(float largest) { return largest / kLargestFloat8; }

/// One output's part of a block.
struct Float8Row {
  std::byte* scale = nullptr;  ///< of the block, a float at any address
  std::uint8_t* elements = nullptr;
};
/// Output `output` of a block [out, in] that begins at `block`.
Float8Row float8_row(std::byte* block, std::int64_t out, std::int64_t in, std::int64_t output);

/// Writes `row`, of `in` numbers, divided by `scale` and rounded to nearest even (zeros for a scale of zero), and what that stands for to `back`.
/// False if a number or the scale is not finite, or the scale below zero.
bool pack_float8_row(const float* row, std::int64_t in, float scale, const Float8Row& to, float* back);

/// As pack() of pack.hpp; REQUIRES: sizes and memory that it has checked.
Status pack_float8(const QuantizedSource& source, std::span<std::byte> to);

/// unpack_output() of pack.hpp.
void unpack_float8_output(const PackedMatrix& weights, std::int64_t output, float* to);

/// The elements [weights.out(), weights.in()], row-major without gaps, and the scales [weights.out()]. False if blocks of the same outputs
/// have different scales.
bool copy_float8(const PackedMatrix& weights, std::uint8_t* elements, float* scales);

}  // namespace accord::kernels
