// A group is 64 floats, a few vectors. Encoding reads it twice: once for the largest magnitude and once for the
// codes. A partial group is copied into a full one on the stack first.
#include "kernels/coded_rows.hpp"

#include <algorithm>
#include <cfloat>
#include <cstring>

#include "kernels/simd_targets.hpp"
#include "kernels/small_floats.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/coded_rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/wide_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, static_cast<std::size_t>(kCodeGroup)>;
using Codes = hn::Rebind<std::int8_t, Floats>;
using Vector = hn::Vec<Floats>;
constexpr auto kElements = static_cast<std::size_t>(kCodeGroup);

template <typename T>
HWY_INLINE void EncodeGroup(const T* x, std::byte* to) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  auto most = hn::Zero(d), poison = hn::Zero(d);  // x * 0 is NaN where x is not finite
  for (std::size_t i = 0; i < kElements; i += lanes) {
    const auto v = LoadWide(d, x + i);
    most = hn::Max(most, hn::Abs(v));
    poison = hn::Add(poison, hn::Mul(v, hn::Zero(d)));
  }
  float scale = hn::GetLane(hn::MaxOfLanes(d, most)) / 127.0F;
  if (scale < FLT_MIN) scale = 0.0F;
  const auto inverse = hn::Set(d, scale == 0.0F ? 0.0F : 1.0F / scale);
  scale += hn::GetLane(hn::SumOfLanes(d, poison));
  std::memcpy(to, &scale, sizeof(scale));
  auto* const codes = reinterpret_cast<std::int8_t*>(to + sizeof(scale));
  for (std::size_t i = 0; i < kElements; i += lanes) {
    const auto rounded = hn::NearestInt(hn::Mul(LoadWide(d, x + i), inverse));
    hn::StoreU(hn::DemoteTo(Codes(), rounded), Codes(), codes + i);
  }
}

template <typename Visit>
HWY_INLINE void DecodeGroup(const std::byte* from, Visit visit) {
  const Floats d;
  const hn::RebindToSigned<Floats> integers;
  float scale = 0.0F;
  std::memcpy(&scale, from, sizeof(scale));
  const auto factor = hn::Set(d, scale);
  const auto* const codes = reinterpret_cast<const std::int8_t*>(from + sizeof(scale));
  for (std::size_t i = 0; i < kElements; i += hn::Lanes(d)) {
    visit(i, hn::Mul(factor, hn::ConvertTo(d, hn::PromoteTo(integers, hn::LoadU(Codes(), codes + i)))));
  }
}

template <typename T>
HWY_INLINE void EncodeAs(const void* from, std::int64_t count, std::byte* to) {
  const T* x = static_cast<const T*>(from);
  for (; count >= kCodeGroup; count -= kCodeGroup, x += kCodeGroup, to += kCodeGroupBytes) EncodeGroup(x, to);
  if (count == 0) return;
  T padded[kElements] = {};
  std::copy(x, x + count, padded);
  EncodeGroup(padded, to);
}

template <typename T>
HWY_INLINE void DecodeAs(const std::byte* from, std::int64_t count, void* to) {
  const Floats d;
  T* y = static_cast<T*>(to);
  for (; count > 0; count -= kCodeGroup, y += kCodeGroup, from += kCodeGroupBytes) {
    T part[kElements];
    T* const group = count < kCodeGroup ? part : y;
    DecodeGroup(from, [&](std::size_t i, Vector v) HWY_ATTR { StoreNarrow(d, v, group + i); });
    if (count < kCodeGroup) std::copy(part, part + count, y);
  }
}

void Encode(const void* x, DType dtype, std::int64_t count, std::byte* to) {
  switch (dtype) {
    case DType::kBFloat16: return EncodeAs<BFloat16>(x, count, to);
    case DType::kFloat16: return EncodeAs<Float16>(x, count, to);
    default: return EncodeAs<float>(x, count, to);
  }
}

void AddGroups(const std::byte* from, std::int64_t parts, std::int64_t part_bytes, std::int64_t groups, std::byte* to) {
  const Floats d;
  for (std::int64_t group = 0; group < groups; ++group) {
    HWY_ALIGN float sums[kElements];
    const std::byte* part = from + group * kCodeGroupBytes;
    DecodeGroup(part, [&](std::size_t i, Vector v) HWY_ATTR { hn::Store(v, d, sums + i); });
    for (std::int64_t i = 1; i < parts; ++i) {
      part += part_bytes;
      DecodeGroup(part,
                  [&](std::size_t j, Vector v) HWY_ATTR { hn::Store(hn::Add(hn::Load(d, sums + j), v), d, sums + j); });
    }
    EncodeGroup(sums, to + group * kCodeGroupBytes);
  }
}

void Decode(const std::byte* from, std::int64_t count, void* y, DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return DecodeAs<BFloat16>(from, count, y);
    case DType::kFloat16: return DecodeAs<Float16>(from, count, y);
    default: return DecodeAs<float>(from, count, y);
  }
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(Encode);
HWY_EXPORT(AddGroups);
HWY_EXPORT(Decode);

void encode_groups(const void* x, DType dtype, std::int64_t count, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(Encode)(x, dtype, count, to);
}
void add_groups(const std::byte* from, std::int64_t parts, std::int64_t part_bytes, std::int64_t groups,
                std::byte* to) {
  HWY_DYNAMIC_DISPATCH(AddGroups)(from, parts, part_bytes, groups, to);
}
void decode_groups(const std::byte* from, std::int64_t count, void* y, DType dtype) {
  HWY_DYNAMIC_DISPATCH(Decode)(from, count, y, dtype);
}

}  // namespace accord::kernels
#endif
