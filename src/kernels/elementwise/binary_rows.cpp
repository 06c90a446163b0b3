// Row kernels with two and three inputs. They are plain loops that the compiler vectorizes for each Highway target.
// The output may be the same memory as an input, so the loops declare their iterations independent (ivdep) instead of
// declaring the pointers unaliased.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "device/quotients.hpp"
#include "kernels/elementwise/row_kernels.hpp"
#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/binary_rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#ifndef ACCORD_INDEPENDENT_ITERATIONS
#if defined(__clang__)
#define ACCORD_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define ACCORD_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

// Signed integers are computed as unsigned ones so that they wrap.
template <typename T>
struct WordOf {
  using Type = std::make_unsigned_t<T>;
};
template <>
struct WordOf<float> {
  using Type = float;
};
template <typename T>
using Word = typename WordOf<T>::Type;

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Word<T>>(a) + static_cast<Word<T>>(b));
  }
};
struct Sub {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Word<T>>(a) - static_cast<Word<T>>(b));
  }
};
struct Mul {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Word<T>>(a) * static_cast<Word<T>>(b));
  }
};
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};
struct DivFloat {
  float operator()(float a, float b) const { return a / b; }
};
template <DType kDType>
struct FloorDivFloat {
  float operator()(float a, float b) const { return device::floor_quotient(a, b, kDType); }
};
template <DType kDType>
struct TruncDivFloat {
  float operator()(float a, float b) const { return device::trunc_quotient(a, b, kDType); }
};
struct PowFloat {
  float operator()(float a, float b) const { return std::pow(a, b); }
};
struct PowInteger {
  template <typename T>
  T operator()(T base, T exponent) const {
    if (exponent < 0) return base == 1 ? T{1} : base == -1 ? (exponent % 2 == 0 ? T{1} : T{-1}) : T{0};
    Word<T> result = 1, square = static_cast<Word<T>>(base);
    for (; exponent != 0; exponent /= 2, square *= square) {
      if (exponent % 2 != 0) result *= square;
    }
    return static_cast<T>(result);
  }
};
struct Eq {
  template <typename T>
  bool operator()(T a, T b) const {
    return a == b;
  }
};
struct Ne {
  template <typename T>
  bool operator()(T a, T b) const {
    return a != b;
  }
};
struct Lt {
  template <typename T>
  bool operator()(T a, T b) const {
    return a < b;
  }
};
struct Le {
  template <typename T>
  bool operator()(T a, T b) const {
    return a <= b;
  }
};
struct Gt {
  template <typename T>
  bool operator()(T a, T b) const {
    return a > b;
  }
};
struct Ge {
  template <typename T>
  bool operator()(T a, T b) const {
    return a >= b;
  }
};
struct And {
  template <typename T>
  bool operator()(T a, T b) const {
    return (a != T{0}) & (b != T{0});
  }
};
struct Or {
  template <typename T>
  bool operator()(T a, T b) const {
    return (a != T{0}) | (b != T{0});
  }
};
struct Xor {
  template <typename T>
  bool operator()(T a, T b) const {
    return (a != T{0}) != (b != T{0});
  }
};

template <class Op, typename T, typename Out>
bool BinaryRow(const void* const* inputs, void* output, std::int64_t count, const RowParameters&) {
  const T* const a = static_cast<const T*>(inputs[0]);
  const T* const b = static_cast<const T*>(inputs[1]);
  Out* const y = static_cast<Out*>(output);
  ACCORD_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < count; ++i) y[i] = static_cast<Out>(Op()(a[i], b[i]));
  return true;
}

enum class Rounding : std::uint8_t { kTowardZero, kDown };

template <typename T, Rounding kRounding>
bool DivideIntegers(const void* const* inputs, void* output, std::int64_t count, const RowParameters&) {
  const T* const a = static_cast<const T*>(inputs[0]);
  const T* const b = static_cast<const T*>(inputs[1]);
  T* const y = static_cast<T*>(output);
  for (std::int64_t i = 0; i < count; ++i) {
    if (b[i] == 0) return false;
    if (b[i] == -1) {
      y[i] = Sub()(T{0}, a[i]);  // the lowest number divided by -1 wraps
      continue;
    }
    const bool rounds_up = kRounding == Rounding::kDown && a[i] % b[i] != 0 && (a[i] < 0) != (b[i] < 0);
    y[i] = static_cast<T>(a[i] / b[i] - (rounds_up ? 1 : 0));
  }
  return true;
}

template <typename T>
RowKernel SelectArithmetic(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd: return BinaryRow<Add, T, T>;
    case BinaryOp::kSub: return BinaryRow<Sub, T, T>;
    case BinaryOp::kMul: return BinaryRow<Mul, T, T>;
    case BinaryOp::kMin: return BinaryRow<Min, T, T>;
    case BinaryOp::kMax: return BinaryRow<Max, T, T>;
    case BinaryOp::kDiv:
      if constexpr (std::is_same_v<T, float>)
        return BinaryRow<DivFloat, float, float>;
      else
        return DivideIntegers<T, Rounding::kTowardZero>;
    case BinaryOp::kFloorDiv:
      if constexpr (std::is_same_v<T, float>)
        return BinaryRow<FloorDivFloat<DType::kFloat32>, float, float>;
      else
        return DivideIntegers<T, Rounding::kDown>;
    case BinaryOp::kTruncDiv:
      if constexpr (std::is_same_v<T, float>)
        return BinaryRow<TruncDivFloat<DType::kFloat32>, float, float>;
      else
        return nullptr;
    case BinaryOp::kPow:
      if constexpr (std::is_same_v<T, float>)
        return BinaryRow<PowFloat, float, float>;
      else
        return BinaryRow<PowInteger, T, T>;
    default: return nullptr;
  }
}

template <typename T>
RowKernel SelectTruth(BinaryOp op) {
  switch (op) {
    case BinaryOp::kEq: return BinaryRow<Eq, T, std::uint8_t>;
    case BinaryOp::kNe: return BinaryRow<Ne, T, std::uint8_t>;
    case BinaryOp::kLt: return BinaryRow<Lt, T, std::uint8_t>;
    case BinaryOp::kLe: return BinaryRow<Le, T, std::uint8_t>;
    case BinaryOp::kGt: return BinaryRow<Gt, T, std::uint8_t>;
    case BinaryOp::kGe: return BinaryRow<Ge, T, std::uint8_t>;
    case BinaryOp::kLogicalAnd: return BinaryRow<And, T, std::uint8_t>;
    case BinaryOp::kLogicalOr: return BinaryRow<Or, T, std::uint8_t>;
    case BinaryOp::kLogicalXor: return BinaryRow<Xor, T, std::uint8_t>;
    default: return nullptr;
  }
}

template <typename T>
RowKernel SelectTyped(BinaryOp op, DType input, DType output) {
  const RowKernel truth = SelectTruth<T>(op);
  if (truth != nullptr) return output == DType::kBool ? truth : nullptr;
  if constexpr (!std::is_same_v<T, std::uint8_t>) {
    if (output == input) return SelectArithmetic<T>(op);
  }
  return nullptr;
}

// Kernels for floats that were widened from 16 bits.
template <DType kDType>
RowKernel SelectNarrow(BinaryOp op) {
  if (op == BinaryOp::kFloorDiv) return BinaryRow<FloorDivFloat<kDType>, float, float>;
  return op == BinaryOp::kTruncDiv ? BinaryRow<TruncDivFloat<kDType>, float, float> : nullptr;
}

RowKernel SelectBinary(BinaryOp op, DType input, DType output) {
  switch (input) {
    case DType::kFloat16: return SelectNarrow<DType::kFloat16>(op);
    case DType::kBFloat16: return SelectNarrow<DType::kBFloat16>(op);
    case DType::kFloat32: return SelectTyped<float>(op, input, output);
    case DType::kInt32: return SelectTyped<std::int32_t>(op, input, output);
    case DType::kInt64: return SelectTyped<std::int64_t>(op, input, output);
    case DType::kBool:
    case DType::kUInt8: return SelectTyped<std::uint8_t>(op, input, output);
    default: return nullptr;
  }
  return nullptr;
}

template <typename T>
bool WhereRow(const void* const* inputs, void* output, std::int64_t count, const RowParameters&) {
  const std::uint8_t* const condition = static_cast<const std::uint8_t*>(inputs[0]);
  const T* const a = static_cast<const T*>(inputs[1]);
  const T* const b = static_cast<const T*>(inputs[2]);
  T* const y = static_cast<T*>(output);
  ACCORD_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < count; ++i) {
    const T yes = a[i], no = b[i];
    y[i] = condition[i] != 0 ? yes : no;
  }
  return true;
}

RowKernel SelectWhere(std::size_t element_bytes) {
  switch (element_bytes) {
    case 1: return WhereRow<std::uint8_t>;
    case 2: return WhereRow<std::uint16_t>;
    case 4: return WhereRow<std::uint32_t>;
    case 8: return WhereRow<std::uint64_t>;
    default: return nullptr;
  }
}

// Both comparisons are false for NaN, so NaN passes through.
template <typename T>
bool ClampRow(const void* const* inputs, void* output, std::int64_t count, const RowParameters& parameters) {
  const bool real = std::is_floating_point_v<T>;
  const T low = real ? static_cast<T>(parameters.real[0]) : static_cast<T>(parameters.integer[0]);
  const T high = real ? static_cast<T>(parameters.real[1]) : static_cast<T>(parameters.integer[1]);
  const T* const x = static_cast<const T*>(inputs[0]);
  T* const y = static_cast<T*>(output);
  ACCORD_INDEPENDENT_ITERATIONS
  for (std::int64_t i = 0; i < count; ++i) {
    const T at_least_low = x[i] < low ? low : x[i];
    y[i] = at_least_low > high ? high : at_least_low;
  }
  return true;
}

RowKernel SelectClamp(DType dtype) {
  if (dtype == DType::kFloat32) return ClampRow<float>;
  if (dtype == DType::kInt32) return ClampRow<std::int32_t>;
  if (dtype == DType::kInt64) return ClampRow<std::int64_t>;
  return nullptr;
}

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(SelectBinary);
HWY_EXPORT(SelectWhere);
HWY_EXPORT(SelectClamp);

RowKernel binary_row_kernel(BinaryOp op, DType input, DType output) {
  return HWY_DYNAMIC_DISPATCH(SelectBinary)(op, input, output);
}
RowKernel where_row_kernel(std::size_t element_bytes) { return HWY_DYNAMIC_DISPATCH(SelectWhere)(element_bytes); }
RowKernel clamp_row_kernel(DType dtype) { return HWY_DYNAMIC_DISPATCH(SelectClamp)(dtype); }

}  // namespace accord::kernels
#endif
