#pragma once
// Block quantization to 8-bit codes: each group of adjacent elements shares a scale. Collectives can send sums in
// this form.

#include <cstddef>
#include <cstdint>

#include "accord/buffer.hpp"

namespace accord::kernels {

/// Elements per group, all of which share one scale.
inline constexpr std::int64_t kCodeGroup = 64;
/// Bytes per group: the scale in float32, then the codes. An element is scale * code, with codes from -127 to 127.
/// The scale is the largest magnitude in the group divided by 127. A group that contains a NaN or an infinity becomes
/// all NaN.
inline constexpr std::int64_t kCodeGroupBytes = 4 + kCodeGroup;

/// Encodes `count` elements of `x`, which are float32, bfloat16 or float16. A partial last group is padded with
/// zeros. Writes ceil(count / kCodeGroup) groups. The error per element is at most half a scale, up to float32
/// rounding.
void encode_groups(const void* x, DType dtype, std::int64_t count, std::byte* to);

/// Reads `parts` runs of `groups` groups each, `part_bytes` apart. Decodes them, adds them in float32 in the order of
/// the runs, and encodes the sums.
void add_groups(const std::byte* from, std::int64_t parts, std::int64_t part_bytes, std::int64_t groups, std::byte* to);

/// Decodes `count` elements into `y`.
void decode_groups(const std::byte* from, std::int64_t count, void* y, DType dtype);

}  // namespace accord::kernels
