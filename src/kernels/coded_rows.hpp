#pragma once
// Real numbers as codes of 8 bits in groups of neighbours that share a scale: what sums over ranks can travel as.

#include <cstddef>
#include <cstdint>

#include "accord/buffer.hpp"

namespace accord::kernels {

/// Elements that share a scale.
inline constexpr std::int64_t kCodeGroup = 64;
/// Bytes of a group: its scale in float32, then its codes. An element is scale * code, with codes from -127 to 127, the scale is
/// the largest magnitude in the group over 127. A group with a NaN or an infinity is all NaN.
inline constexpr std::int64_t kCodeGroupBytes = 4 + kCodeGroup;

/// Codes `count` elements of `x`, of float32, bfloat16 or float16; a last group that is not full is filled up with zeros.
/// Writes ceil(count / kCodeGroup) groups. Errors are at most half a scale (to the rounding of float32).
void encode_groups(const void* x, DType dtype, std::int64_t count, std::byte* to);

/// Decodes `groups` groups of each of `parts` runs of groups, `part_bytes` apart, adds them up in float32 in their order, and codes the
/// sums.
void add_groups(const std::byte* from, std::int64_t parts, std::int64_t part_bytes, std::int64_t groups, std::byte* to);

/// Decodes `count` elements.
void decode_groups(const std::byte* from, std::int64_t count, void* y, DType dtype);

}  // namespace accord::kernels
