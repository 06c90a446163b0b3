// A temporal copy is memcpy. A non-temporal copy first aligns the destination to a vector boundary with a small
// memcpy. It then streams whole vectors (the source may be unaligned) and finishes with a memcpy and a store fence.

#include "kernels/copy.hpp"

#include <cstdint>
#include <cstring>

#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/copy.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/cache_control.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void CopyStreaming(std::uint8_t* to, const std::uint8_t* from, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t head = (lanes - reinterpret_cast<std::uintptr_t>(to) % lanes) % lanes;
  std::memcpy(to, from, head);
  std::size_t i = head;
  for (; i + 4 * lanes <= bytes; i += 4 * lanes) {
    const auto v0 = hn::LoadU(d, from + i);
    const auto v1 = hn::LoadU(d, from + i + lanes);
    const auto v2 = hn::LoadU(d, from + i + 2 * lanes);
    const auto v3 = hn::LoadU(d, from + i + 3 * lanes);
    hn::Stream(v0, d, to + i);
    hn::Stream(v1, d, to + i + lanes);
    hn::Stream(v2, d, to + i + 2 * lanes);
    hn::Stream(v3, d, to + i + 3 * lanes);
  }
  std::memcpy(to + i, from + i, bytes - i);
  hwy::FlushStream();
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(CopyStreaming);

void copy(void* destination, const void* source, std::size_t bytes, Store store) {
  // below this, the partial vectors at both ends cost more than streaming saves
  constexpr std::size_t kMinStreamedBytes = 1024;
  if (bytes == 0 || destination == source) return;
  if (store == Store::kTemporal || bytes < kMinStreamedBytes) {
    std::memcpy(destination, source, bytes);
    return;
  }
  HWY_DYNAMIC_DISPATCH(CopyStreaming)
  (static_cast<std::uint8_t*>(destination), static_cast<const std::uint8_t*>(source), bytes);
}

}  // namespace accord::kernels
#endif
