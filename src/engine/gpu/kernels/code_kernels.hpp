#pragma once
// Kernels that encode groups of neighbouring elements as 8-bit codes with a scale (kernels/coded_rows.hpp), the form
// in which sums over ranks can be sent. Each warp computes one group; its lanes share the group's elements.

#include <cfloat>
#include <cmath>

#include "device/kernel.hpp"
#include "device/numbers.hpp"
#include "kernels/coded_rows.hpp"

namespace accord::engine {

/// Returns element `i` of an encoded group.
ACCORD_ON_DEVICE inline float decoded(const std::byte* group, std::int64_t i) {
  const float scale = *reinterpret_cast<const float*>(group);
  return scale * static_cast<float>(reinterpret_cast<const std::int8_t*>(group + sizeof(float))[i]);
}

/// Encodes a group whose element i is element(i). All lanes of a warp must call it.
template <typename Block, typename Element>
ACCORD_ON_DEVICE void encode_group(Block& block, std::byte* to, const Element& element) {
  float largest = 0.0F, non_finite = 0.0F;  // x * 0 is NaN where x is not finite
  for (std::int64_t i = block.lane(); i < kernels::kCodeGroup; i += block.lanes()) {
    const float x = element(i);
    largest = fabsf(x) > largest ? fabsf(x) : largest;
    non_finite += x * 0.0F;
  }
  float scale = block.warp_max(largest) / 127.0F;
  if (scale < FLT_MIN) scale = 0.0F;
  const float inverse = scale == 0.0F ? 0.0F : 1.0F / scale;
  scale += block.warp_sum(non_finite);
  if (block.lane() == 0) *reinterpret_cast<float*>(to) = scale;
  for (std::int64_t i = block.lane(); i < kernels::kCodeGroup; i += block.lanes()) {
    const float code = rintf(element(i) * inverse);
    reinterpret_cast<std::int8_t*>(to + sizeof(float))[i] = static_cast<std::int8_t>(scale == scale ? code : 0.0F);
  }
}

/// Calls body(group) for each group of the calling warp.
template <typename Block, typename Body>
ACCORD_ON_DEVICE void for_groups_of_warp(Block& block, std::int64_t groups, const Body& body) {
  const auto lanes = static_cast<std::size_t>(block.lanes());
  for (std::size_t group = block.first() / lanes; group < static_cast<std::size_t>(groups);
       group += block.stride() / lanes)
    body(static_cast<std::int64_t>(group));
}

/// kernels::encode_groups() for `groups` groups. Elements from `count` on are zeros.
struct EncodeGroups {
  static constexpr const char* kName = "engine_encode_groups";
  static constexpr int kThreads = 256;
  const void* x = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t count = 0, groups = 0;
  std::byte* to = nullptr;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    for_groups_of_warp(block, groups, [&](std::int64_t group) {
      const std::int64_t first = group * kernels::kCodeGroup;
      encode_group(block, to + group * kernels::kCodeGroupBytes,
                   [&](std::int64_t i) { return first + i < count ? device::load_float(x, dtype, first + i) : 0.0F; });
    });
  }
};

/// kernels::add_groups().
struct AddGroups {
  static constexpr const char* kName = "engine_add_groups";
  static constexpr int kThreads = 256;
  const std::byte* from = nullptr;
  std::int64_t parts = 0, part_bytes = 0, groups = 0;
  std::byte* to = nullptr;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    for_groups_of_warp(block, groups, [&](std::int64_t group) {
      const std::byte* const first = from + group * kernels::kCodeGroupBytes;
      encode_group(block, to + group * kernels::kCodeGroupBytes, [&](std::int64_t i) {
        float sum = decoded(first, i);
        for (std::int64_t part = 1; part < parts; ++part) sum += decoded(first + part * part_bytes, i);
        return sum;
      });
    });
  }
};

/// kernels::decode_groups().
struct DecodeGroups {
  static constexpr const char* kName = "engine_decode_groups";
  static constexpr int kThreads = 256;
  const std::byte* from = nullptr;
  std::int64_t count = 0;
  void* y = nullptr;
  DType dtype = DType::kFloat32;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    for (std::size_t at = block.first(); at < static_cast<std::size_t>(count); at += block.stride()) {
      const auto i = static_cast<std::int64_t>(at), group = i / kernels::kCodeGroup;
      const float x = decoded(from + group * kernels::kCodeGroupBytes, i - group * kernels::kCodeGroup);
      device::store_float(y, dtype, i, x);
    }
  }
};

}  // namespace accord::engine
