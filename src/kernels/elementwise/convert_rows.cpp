// Row kernels that convert between dtypes. The conversions are plain loops that the compiler vectorizes for each
// target. float16 and bfloat16 use the same vector code as the reductions.

#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/elementwise/row_kernels.hpp"
#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/convert_rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/half_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct Truth {};  // a bool in memory: one byte, 0 or 1

template <typename T>
using Stored = std::conditional_t<std::is_same_v<T, Truth>, std::uint8_t, T>;

template <typename To, typename From>
HWY_INLINE Stored<To> ConvertOne(From x) {
  if constexpr (std::is_same_v<To, Truth>) {
    return x != From{0} ? 1 : 0;
  } else if constexpr (std::is_floating_point_v<From> && std::is_same_v<To, std::uint8_t>) {
    return static_cast<To>(ConvertOne<std::int64_t>(x));
  } else if constexpr (std::is_floating_point_v<From> && !std::is_floating_point_v<To>) {
    constexpr From kLowest = static_cast<From>(std::numeric_limits<To>::min());  // NaN fails both comparisons
    return x >= kLowest && x < -kLowest ? static_cast<To>(x) : std::numeric_limits<To>::min();
  } else {
    return static_cast<To>(x);
  }
}

template <typename To, typename From>
bool ConvertRow(const void* const* inputs, void* output, std::int64_t count, const RowParameters&) {
  const From* const x = static_cast<const From*>(inputs[0]);
  Stored<To>* const y = static_cast<Stored<To>*>(output);
  for (std::int64_t i = 0; i < count; ++i) y[i] = ConvertOne<To>(x[i]);
  return true;
}

template <std::size_t kBytes>
bool CopyRow(const void* const* inputs, void* output, std::int64_t count, const RowParameters&) {
  std::memmove(output, inputs[0], static_cast<std::size_t>(count) * kBytes);
  return true;
}

// Calls body(tag, i) for whole vectors and then for the remaining single lanes.
template <class Body>
HWY_INLINE void ForVectors(std::int64_t count, Body body) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const std::size_t n = static_cast<std::size_t>(count);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) body(d, i);
  for (; i < n; ++i) body(one, i);
}

template <DType kHalf>
bool WidenRow(const void* const* inputs, void* output, std::int64_t count, const RowParameters&) {
  const std::uint16_t* const x = static_cast<const std::uint16_t*>(inputs[0]);
  float* const y = static_cast<float*>(output);
  ForVectors(count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto halves = hn::LoadU(Halves<decltype(d)>(), x + i);
    hn::StoreU(kHalf == DType::kFloat16 ? Float16ToFloat(d, halves) : BFloat16ToFloat(d, halves), d, y + i);
  });
  return true;
}

template <DType kHalf>
bool NarrowRow(const void* const* inputs, void* output, std::int64_t count, const RowParameters&) {
  const float* const x = static_cast<const float*>(inputs[0]);
  std::uint16_t* const y = static_cast<std::uint16_t*>(output);
  ForVectors(count, [&](auto d, std::size_t i) HWY_ATTR {
    const auto v = CanonicalNaN(d, hn::LoadU(d, x + i));
    const auto halves = kHalf == DType::kFloat16 ? FloatToFloat16(d, v) : FloatToBFloat16(d, v);
    hn::StoreU(halves, Halves<decltype(d)>(), y + i);
  });
  return true;
}

template <typename From>
RowKernel SelectTo(DType output) {
  switch (output) {
    case DType::kFloat32: return ConvertRow<float, From>;
    case DType::kInt32: return ConvertRow<std::int32_t, From>;
    case DType::kInt64: return ConvertRow<std::int64_t, From>;
    case DType::kUInt8: return ConvertRow<std::uint8_t, From>;
    case DType::kBool: return ConvertRow<Truth, From>;
    default: return nullptr;
  }
  return nullptr;
}

RowKernel SelectCopy(std::size_t element_bytes) {
  switch (element_bytes) {
    case 1: return CopyRow<1>;
    case 2: return CopyRow<2>;
    case 4: return CopyRow<4>;
    case 8: return CopyRow<8>;
    default: return nullptr;
  }
}

RowKernel SelectConvert(DType input, DType output) {
  if (input == output) return SelectCopy(size_of(input));
  if (input == DType::kFloat32 && output == DType::kFloat16) return NarrowRow<DType::kFloat16>;
  if (input == DType::kFloat32 && output == DType::kBFloat16) return NarrowRow<DType::kBFloat16>;
  switch (input) {
    case DType::kFloat32: return SelectTo<float>(output);
    case DType::kInt32: return SelectTo<std::int32_t>(output);
    case DType::kInt64: return SelectTo<std::int64_t>(output);
    case DType::kBool:
    case DType::kUInt8: return SelectTo<std::uint8_t>(output);
    case DType::kFloat16: return output == DType::kFloat32 ? WidenRow<DType::kFloat16> : nullptr;
    case DType::kBFloat16: return output == DType::kFloat32 ? WidenRow<DType::kBFloat16> : nullptr;
    default: return nullptr;
  }
  return nullptr;
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(SelectConvert);
HWY_EXPORT(SelectCopy);

RowKernel convert_row_kernel(DType input, DType output) { return HWY_DYNAMIC_DISPATCH(SelectConvert)(input, output); }
RowKernel copy_row_kernel(std::size_t element_bytes) { return HWY_DYNAMIC_DISPATCH(SelectCopy)(element_bytes); }

}  // namespace accord::kernels
#endif
