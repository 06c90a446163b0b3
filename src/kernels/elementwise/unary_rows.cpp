// Row kernels with one input. Functions of float32 run vector by vector, using math_simd.hpp and Highway's own log,
// sin and cos, whose special values and large arguments are corrected here. Integers and bool use plain loops that
// the compiler vectorizes for each target.

#include <cmath>
#include <type_traits>

#include "kernels/elementwise/row_kernels.hpp"
#include "kernels/simd_targets.hpp"

// Highway's files must come in this order.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/unary_rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
#include "kernels/math_simd.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace accord::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

template <class Map>
HWY_INLINE bool MapFloats(const void* const* inputs, void* output, std::int64_t count, Map map) {
  const Floats d;
  const float* const x = static_cast<const float*>(inputs[0]);
  float* const y = static_cast<float*>(output);
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t n = static_cast<std::size_t>(count);
  std::size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto y0 = map(d, hn::LoadU(d, x + i));
    const auto y1 = map(d, hn::LoadU(d, x + i + lanes));
    hn::StoreU(y0, d, y + i);
    hn::StoreU(y1, d, y + i + lanes);
  }
  if (i + lanes <= n) {
    hn::StoreU(map(d, hn::LoadU(d, x + i)), d, y + i);
    i += lanes;
  }
  if (i < n) StorePart(d, map(d, LoadPart(d, x + i, n - i, 1.0F)), y + i, n - i);
  return true;
}

HWY_INLINE Vector LogOfAny(Floats d, Vector x) {
  const auto infinity = hn::Set(d, HUGE_VALF);
  const auto zero = hn::Zero(d);
  auto y = hn::IfThenElse(hn::Eq(x, infinity), infinity, hn::CallLog(d, x));
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), y);
  y = hn::IfThenElse(hn::Lt(x, zero), hn::Set(d, NAN), y);
  return KeepNaN(d, x, y);
}

// Around 0, log(1 + x) loses what 1 + x rounds away; Highway corrects it. Zero keeps its sign.
HWY_INLINE Vector Log1pOfAny(Floats d, Vector x) {
  const auto infinity = hn::Set(d, HUGE_VALF);
  const auto minus_one = hn::Set(d, -1.0F);
  auto y = hn::IfThenElse(hn::Eq(x, infinity), infinity, hn::CallLog1p(d, x));
  y = hn::IfThenElse(hn::Eq(x, minus_one), hn::Neg(infinity), y);
  y = hn::IfThenElse(hn::Lt(x, minus_one), hn::Set(d, NAN), y);
  y = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), x, y);
  return KeepNaN(d, x, y);
}

// Highway reduces arguments up to 39000. A vector with a larger one is computed by the C library.
template <class Near>
HWY_INLINE Vector Trigonometric(Floats d, Vector x, Near near_function, float (*any)(float)) {
  if (hn::AllTrue(d, hn::Lt(hn::Abs(x), hn::Set(d, 39000.0F)))) return near_function(d, x);
  HWY_ALIGN float lanes[hn::MaxLanes(Floats())];
  hn::Store(x, d, lanes);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = any(lanes[i]);
  return hn::Load(d, lanes);
}
float SinOfAny(float x) { return std::sin(x); }
float CosOfAny(float x) { return std::cos(x); }

template <UnaryOp kOp>
HWY_INLINE Vector Apply(Floats d, Vector x) {
  const auto one = hn::Set(d, 1.0F);
  if constexpr (kOp == UnaryOp::kGeluErf) return GeluErf(d, x);
  if constexpr (kOp == UnaryOp::kGeluTanh) return GeluTanh(d, x);
  if constexpr (kOp == UnaryOp::kRelu) return KeepNaN(d, x, hn::Max(x, hn::Zero(d)));
  if constexpr (kOp == UnaryOp::kSilu) return Silu(d, x);
  if constexpr (kOp == UnaryOp::kTanh) return TanhOfAny(d, x);
  if constexpr (kOp == UnaryOp::kSigmoid) return Sigmoid(d, x);
  if constexpr (kOp == UnaryOp::kExp) return ExpOfAny(d, x);
  if constexpr (kOp == UnaryOp::kLog) return LogOfAny(d, x);
  if constexpr (kOp == UnaryOp::kLog1p) return Log1pOfAny(d, x);
  if constexpr (kOp == UnaryOp::kSqrt) return hn::Sqrt(x);
  if constexpr (kOp == UnaryOp::kRsqrt) return hn::Div(one, hn::Sqrt(x));
  if constexpr (kOp == UnaryOp::kNeg) return hn::Neg(x);
  if constexpr (kOp == UnaryOp::kAbs) return hn::Abs(x);
  if constexpr (kOp == UnaryOp::kReciprocal) return hn::Div(one, x);
  if constexpr (kOp == UnaryOp::kErf) return ErfOfAny(d, x);
  if constexpr (kOp == UnaryOp::kSin) {
    return Trigonometric(
        d, x, [](Floats f, Vector v) HWY_ATTR { return hn::CallSin(f, v); }, SinOfAny);
  }
  if constexpr (kOp == UnaryOp::kCos) {
    return Trigonometric(
        d, x, [](Floats f, Vector v) HWY_ATTR { return hn::CallCos(f, v); }, CosOfAny);
  }
  if constexpr (kOp == UnaryOp::kFloor) return hn::Floor(x);
  if constexpr (kOp == UnaryOp::kCeil) return hn::Ceil(x);
}

template <UnaryOp kOp>
bool FloatRow(const void* const* inputs, void* output, std::int64_t count, const RowParameters&) {
  return MapFloats(inputs, output, count, [](Floats d, Vector x) HWY_ATTR { return Apply<kOp>(d, x); });
}

template <UnaryOp kOp, typename T>
bool IntegerRow(const void* const* inputs, void* output, std::int64_t count, const RowParameters&) {
  using Unsigned = std::make_unsigned_t<T>;  // negation wraps
  const T* const x = static_cast<const T*>(inputs[0]);
  T* const y = static_cast<T*>(output);
  for (std::int64_t i = 0; i < count; ++i) {
    const T negative = static_cast<T>(Unsigned{0} - static_cast<Unsigned>(x[i]));
    if constexpr (kOp == UnaryOp::kNeg) y[i] = negative;
    if constexpr (kOp == UnaryOp::kAbs) y[i] = x[i] < 0 ? negative : x[i];
    if constexpr (kOp == UnaryOp::kRelu) y[i] = x[i] < 0 ? T{0} : x[i];
  }
  return true;
}

template <typename T>
bool NotRow(const void* const* inputs, void* output, std::int64_t count, const RowParameters&) {
  const T* const x = static_cast<const T*>(inputs[0]);
  std::uint8_t* const y = static_cast<std::uint8_t*>(output);
  for (std::int64_t i = 0; i < count; ++i) y[i] = x[i] == T{0} ? 1 : 0;
  return true;
}

RowKernel SelectFloat(UnaryOp op) {
  switch (op) {
    case UnaryOp::kGeluErf: return FloatRow<UnaryOp::kGeluErf>;
    case UnaryOp::kGeluTanh: return FloatRow<UnaryOp::kGeluTanh>;
    case UnaryOp::kRelu: return FloatRow<UnaryOp::kRelu>;
    case UnaryOp::kSilu: return FloatRow<UnaryOp::kSilu>;
    case UnaryOp::kTanh: return FloatRow<UnaryOp::kTanh>;
    case UnaryOp::kSigmoid: return FloatRow<UnaryOp::kSigmoid>;
    case UnaryOp::kExp: return FloatRow<UnaryOp::kExp>;
    case UnaryOp::kLog: return FloatRow<UnaryOp::kLog>;
    case UnaryOp::kSqrt: return FloatRow<UnaryOp::kSqrt>;
    case UnaryOp::kRsqrt: return FloatRow<UnaryOp::kRsqrt>;
    case UnaryOp::kNeg: return FloatRow<UnaryOp::kNeg>;
    case UnaryOp::kAbs: return FloatRow<UnaryOp::kAbs>;
    case UnaryOp::kReciprocal: return FloatRow<UnaryOp::kReciprocal>;
    case UnaryOp::kErf: return FloatRow<UnaryOp::kErf>;
    case UnaryOp::kLog1p: return FloatRow<UnaryOp::kLog1p>;
    case UnaryOp::kSin: return FloatRow<UnaryOp::kSin>;
    case UnaryOp::kCos: return FloatRow<UnaryOp::kCos>;
    case UnaryOp::kFloor: return FloatRow<UnaryOp::kFloor>;
    case UnaryOp::kCeil: return FloatRow<UnaryOp::kCeil>;
    case UnaryOp::kLogicalNot: return nullptr;
  }
  return nullptr;
}

template <typename T>
RowKernel SelectInteger(UnaryOp op) {
  if (op == UnaryOp::kNeg) return IntegerRow<UnaryOp::kNeg, T>;
  if (op == UnaryOp::kAbs) return IntegerRow<UnaryOp::kAbs, T>;
  if (op == UnaryOp::kRelu) return IntegerRow<UnaryOp::kRelu, T>;
  return nullptr;
}

RowKernel SelectNot(DType input) {
  switch (input) {
    case DType::kFloat32: return NotRow<float>;
    case DType::kInt32: return NotRow<std::int32_t>;
    case DType::kInt64: return NotRow<std::int64_t>;
    case DType::kBool:
    case DType::kUInt8: return NotRow<std::uint8_t>;
    default: return nullptr;
  }
  return nullptr;
}

RowKernel SelectUnary(UnaryOp op, DType input, DType output) {
  if (op == UnaryOp::kLogicalNot) return output == DType::kBool ? SelectNot(input) : nullptr;
  if (input != output) return nullptr;
  if (input == DType::kFloat32) return SelectFloat(op);
  if (input == DType::kInt32) return SelectInteger<std::int32_t>(op);
  if (input == DType::kInt64) return SelectInteger<std::int64_t>(op);
  return nullptr;
}

bool PowRow(const void* const* inputs, void* output, std::int64_t count, const RowParameters& parameters) {
  const auto map = [&](auto function) HWY_ATTR { return MapFloats(inputs, output, count, function); };
  const double exponent = parameters.real[0];
  if (exponent == 2.0) return map([](Floats, Vector x) HWY_ATTR { return hn::Mul(x, x); });
  if (exponent == 3.0) return map([](Floats, Vector x) HWY_ATTR { return hn::Mul(hn::Mul(x, x), x); });
  if (exponent == -1.0) return map(Apply<UnaryOp::kReciprocal>);
  const bool roots = parameters.integer[0] == 0;
  if (roots && exponent == 0.5) return map(Apply<UnaryOp::kSqrt>);
  if (roots && exponent == -0.5) return map(Apply<UnaryOp::kRsqrt>);
  const float* const x = static_cast<const float*>(inputs[0]);
  float* const y = static_cast<float*>(output);
  for (std::int64_t i = 0; i < count; ++i) y[i] = std::pow(x[i], static_cast<float>(exponent));
  return true;
}
RowKernel SelectPow() { return PowRow; }

}  // namespace accord::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace accord::kernels {

HWY_EXPORT(SelectUnary);
HWY_EXPORT(SelectPow);

RowKernel unary_row_kernel(UnaryOp op, DType input, DType output) {
  return HWY_DYNAMIC_DISPATCH(SelectUnary)(op, input, output);
}
RowKernel pow_row_kernel() { return HWY_DYNAMIC_DISPATCH(SelectPow)(); }

}  // namespace accord::kernels
#endif
