// Reductions of integers. Sums, products and bitwise ops do not depend on the sign, so signed types use the unsigned
// kernels. avg has no vector form, because instruction sets lack integer division.

#include "kernels/reduce/families.hpp"
#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce/integer.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "kernels/half_simd.hpp"
#include "kernels/reduce/loops_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

template <typename T>
struct Integer : InOrder<Integer<T>, sizeof(T)> {
  using Tag = hn::ScalableTag<T>;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) {
    return LoadAnywhere(d, from);
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, std::byte* to) {
    StoreAnywhere(d, v, to);
  }
};

struct And : Plain {
  template <class D>
  static HWY_INLINE hn::Vec<D> Combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::And(a, b);
  }
};

struct Or : Plain {
  template <class D>
  static HWY_INLINE hn::Vec<D> Combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Or(a, b);
  }
};

struct Xor : Plain {
  template <class D>
  static HWY_INLINE hn::Vec<D> Combine(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Xor(a, b);
  }
};

// The low half of the product. Instruction sets provide it for 16 and 32 bits. Bytes are multiplied as the two halves
// of 16-bit lanes, and 64-bit lanes by long multiplication.
struct WrappingProduct : Plain {
  template <class D>
  static HWY_INLINE hn::Vec<D> Combine(D d, hn::Vec<D> a, hn::Vec<D> b) {
    using T = hn::TFromD<D>;
    if constexpr (hn::MaxLanes(D()) == 1) {
      return hn::Set(d, static_cast<T>(std::uint64_t{hn::GetLane(a)} * std::uint64_t{hn::GetLane(b)}));
    } else if constexpr (sizeof(T) == 1) {
      const hn::Repartition<std::uint16_t, D> d16;
      const auto a16 = hn::BitCast(d16, a), b16 = hn::BitCast(d16, b);
      const auto low = hn::And(hn::Mul(a16, b16), hn::Set(d16, 0xFF));
      const auto high = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
      return hn::BitCast(d, hn::Or(low, high));
    } else if constexpr (sizeof(T) == 8) {
      const hn::Repartition<std::uint32_t, D> d32;
      const auto times = [&](hn::Vec<D> x, hn::Vec<D> y) HWY_ATTR {  // multiplies the low halves
        return hn::BitCast(d, hn::MulEven(hn::BitCast(d32, x), hn::BitCast(d32, y)));
      };
      const auto cross = hn::Add(times(hn::ShiftRight<32>(a), b), times(a, hn::ShiftRight<32>(b)));
      return hn::Add(times(a, b), hn::ShiftLeft<32>(cross));
    } else {
      return hn::Mul(a, b);
    }
  }
};

template <typename T>
void AverageOfIntegers(void* destination, void* mirror, const void* const* sources, const Factor* factors, int n,
                       std::size_t count) {
  Reduce<Integer<std::make_unsigned_t<T>>, Sum>(destination, nullptr, sources, factors, n, count);
  auto* bytes = static_cast<std::byte*>(destination);
  for (std::size_t i = 0; i < count && n > 1; ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    value =
        static_cast<T>(value / static_cast<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>(n));
    std::memcpy(bytes + i * sizeof(T), &value, sizeof(T));
  }
  if (mirror != nullptr && mirror != destination && count > 0) std::memcpy(mirror, destination, count * sizeof(T));
}

template <typename T>
ReduceKernel SelectInteger(ReduceOp op) {
  using Bits = Integer<std::make_unsigned_t<T>>;
  constexpr auto kToFour = sizeof(T) >= 4 ? Unrolled::kToFour : Unrolled::kPairs;
  switch (op) {
    case ReduceOp::kSum: return Reduce<Bits, Sum, kToFour>;
    case ReduceOp::kProduct: return Reduce<Bits, WrappingProduct>;
    case ReduceOp::kMin: return Reduce<Integer<T>, Min, kToFour>;
    case ReduceOp::kMax: return Reduce<Integer<T>, Max, kToFour>;
    case ReduceOp::kBand: return Reduce<Bits, And>;
    case ReduceOp::kBor: return Reduce<Bits, Or>;
    case ReduceOp::kBxor: return Reduce<Bits, Xor>;
    case ReduceOp::kAvg: return AverageOfIntegers<T>;
    case ReduceOp::kPremulSum: return nullptr;
  }
  return nullptr;
}

ReduceKernel SelectByWidth(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kInt8: return SelectInteger<std::int8_t>(op);
    case DType::kInt16: return SelectInteger<std::int16_t>(op);
    case DType::kInt32: return SelectInteger<std::int32_t>(op);
    case DType::kInt64: return SelectInteger<std::int64_t>(op);
    case DType::kUInt8: return SelectInteger<std::uint8_t>(op);
    case DType::kUInt16: return SelectInteger<std::uint16_t>(op);
    case DType::kUInt32: return SelectInteger<std::uint32_t>(op);
    case DType::kUInt64: return SelectInteger<std::uint64_t>(op);
    default: return nullptr;
  }
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(SelectByWidth);

ReduceKernel integer_reduce_kernel(DType dtype, ReduceOp op) { return HWY_DYNAMIC_DISPATCH(SelectByWidth)(dtype, op); }

}  // namespace accord::kernels
#endif
