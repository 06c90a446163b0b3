// Argument checks and op names. The arithmetic is in the row kernels (unary_rows.cpp, binary_rows.cpp,
// convert_rows.cpp); row_loop.cpp walks the operands.

#include "kernels/elementwise/elementwise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/elementwise/row_kernels.hpp"

namespace accord::kernels {

namespace {

Status no_kernel(std::string_view what, DType input, DType output) {
  return {StatusCode::kUnsupported,
          fmt::format("{}: no kernel from {} to {}", what, accord::to_string(input), accord::to_string(output))};
}

// Broadcasts the inputs to the output's sizes and runs the kernel.
template <std::size_t kInputs>
Status run(std::string_view what, RowKernel kernel, std::array<ConstView, kInputs> inputs, const View& y,
           const RowParameters& parameters = {}, NarrowFloats narrow = NarrowFloats::kUnchanged) {
  const std::span<const std::int64_t> sizes(y.layout.sizes.data(), static_cast<std::size_t>(y.layout.dims));
  for (ConstView& input : inputs) {
    Result<Layout> layout = broadcast_layout(input.layout, sizes);
    if (!layout.ok()) return layout.status().with_context(what);
    input.layout = *layout;
  }
  if (run_rows(kernel, inputs, y, parameters, narrow)) return {};
  return {StatusCode::kInvalidArgument, fmt::format("{}: integer division by zero", what)};
}

// The dtype in which kernels compute on operands of `dtype`.
DType computed(DType dtype) { return is_real(dtype) ? DType::kFloat32 : dtype; }

// One element in memory, for use as a view without dimensions.
struct Element {
  alignas(8) std::byte bytes[8] = {};
  DType dtype = DType::kFloat32;

  ConstView view() const { return {bytes, dtype, {}}; }
};

template <typename T, typename From>
void write(Element& element, From value) {
  const T typed = static_cast<T>(value);
  std::memcpy(element.bytes, &typed, sizeof(T));
}

Result<Element> element_of(Scalar value, DType dtype) {
  Element element;
  element.dtype = dtype;
  switch (dtype) {
    case DType::kFloat32: write<float>(element, value.real); return element;
    case DType::kFloat16:
    case DType::kBFloat16: {
      const float real = static_cast<float>(value.real);
      const void* const from = &real;
      convert_row_kernel(DType::kFloat32, dtype)(&from, element.bytes, 1, {});
      return element;
    }
    case DType::kInt32: write<std::int32_t>(element, value.integer); return element;
    case DType::kInt64: write<std::int64_t>(element, value.integer); return element;
    case DType::kUInt8: write<std::uint8_t>(element, value.integer); return element;
    case DType::kBool: write<std::uint8_t>(element, value.real != 0.0); return element;
    default: break;
  }
  return Status(StatusCode::kUnsupported, fmt::format("{} scalars are not supported", accord::to_string(dtype)));
}

}  // namespace

Scalar Scalar::of(double value) {
  using Int64 = std::numeric_limits<std::int64_t>;
  constexpr double kPastEnd = 0x1p63;
  if (std::isnan(value)) return {value, 0};
  if (value >= kPastEnd) return {value, Int64::max()};
  if (value < -kPastEnd) return {value, Int64::min()};
  return {value, static_cast<std::int64_t>(value)};
}

std::string_view to_string(UnaryOp op) {
  switch (op) {
    case UnaryOp::kGeluErf: return "gelu_erf";
    case UnaryOp::kGeluTanh: return "gelu_tanh";
    case UnaryOp::kRelu: return "relu";
    case UnaryOp::kSilu: return "silu";
    case UnaryOp::kTanh: return "tanh";
    case UnaryOp::kSigmoid: return "sigmoid";
    case UnaryOp::kExp: return "exp";
    case UnaryOp::kLog: return "log";
    case UnaryOp::kLog1p: return "log1p";
    case UnaryOp::kSqrt: return "sqrt";
    case UnaryOp::kRsqrt: return "rsqrt";
    case UnaryOp::kNeg: return "neg";
    case UnaryOp::kAbs: return "abs";
    case UnaryOp::kReciprocal: return "reciprocal";
    case UnaryOp::kErf: return "erf";
    case UnaryOp::kSin: return "sin";
    case UnaryOp::kCos: return "cos";
    case UnaryOp::kFloor: return "floor";
    case UnaryOp::kCeil: return "ceil";
    case UnaryOp::kLogicalNot: return "logical_not";
  }
  return "unknown";
}

std::string_view to_string(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd: return "add";
    case BinaryOp::kSub: return "sub";
    case BinaryOp::kMul: return "mul";
    case BinaryOp::kDiv: return "div";
    case BinaryOp::kFloorDiv: return "floor_div";
    case BinaryOp::kTruncDiv: return "trunc_div";
    case BinaryOp::kMin: return "min";
    case BinaryOp::kMax: return "max";
    case BinaryOp::kPow: return "pow";
    case BinaryOp::kEq: return "eq";
    case BinaryOp::kNe: return "ne";
    case BinaryOp::kLt: return "lt";
    case BinaryOp::kLe: return "le";
    case BinaryOp::kGt: return "gt";
    case BinaryOp::kGe: return "ge";
    case BinaryOp::kLogicalAnd: return "logical_and";
    case BinaryOp::kLogicalOr: return "logical_or";
    case BinaryOp::kLogicalXor: return "logical_xor";
  }
  return "unknown";
}

Status unary(UnaryOp op, const ConstView& x, const View& y) {
  const RowKernel kernel = unary_row_kernel(op, computed(x.dtype), computed(y.dtype));
  if (kernel == nullptr) return no_kernel(to_string(op), x.dtype, y.dtype);
  return run<1>(to_string(op), kernel, {x}, y, {}, NarrowFloats::kAsFloat32);
}

Status pow_scalar(const ConstView& x, double exponent, const View& y) {
  if (!is_real(x.dtype) || !is_real(y.dtype)) return no_kernel("pow", x.dtype, y.dtype);
  RowParameters parameters;
  parameters.real[0] = exponent;
  // As in PyTorch: for float16, pow(-inf, 0.5) is infinity, while the square root would be NaN.
  parameters.integer[0] = x.dtype == DType::kFloat16 ? 1 : 0;
  return run<1>("pow", pow_row_kernel(), {x}, y, parameters, NarrowFloats::kAsFloat32);
}

Status binary(BinaryOp op, const ConstView& a, const ConstView& b, const View& y) {
  const bool rounds_between = op == BinaryOp::kFloorDiv || op == BinaryOp::kTruncDiv;
  const DType dtype = rounds_between && a.dtype == b.dtype ? a.dtype : computed(a.dtype);
  const RowKernel kernel =
      computed(a.dtype) == computed(b.dtype) ? binary_row_kernel(op, dtype, computed(y.dtype)) : nullptr;
  if (kernel == nullptr) {
    return {StatusCode::kUnsupported,
            fmt::format("{}: no kernel for {} and {} to {}", to_string(op), accord::to_string(a.dtype),
                        accord::to_string(b.dtype), accord::to_string(y.dtype))};
  }
  return run<2>(to_string(op), kernel, {a, b}, y, {}, NarrowFloats::kAsFloat32);
}

Status binary_scalar(BinaryOp op, const ConstView& a, Scalar b, const View& y) {
  ACCORD_ASSIGN_OR_RETURN(const Element element, element_of(b, computed(a.dtype)));
  return binary(op, a, element.view(), y);
}

Status where(const ConstView& condition, const ConstView& a, const ConstView& b, const View& y) {
  if (condition.dtype != DType::kBool || a.dtype != b.dtype || a.dtype != y.dtype) {
    return {StatusCode::kUnsupported,
            fmt::format(
                "where: the condition must be bool and the other operands must share one dtype, not {}, {}, {} and {}",
                accord::to_string(condition.dtype), accord::to_string(a.dtype), accord::to_string(b.dtype),
                accord::to_string(y.dtype))};
  }
  return run<3>("where", where_row_kernel(size_of(y.dtype)), {condition, a, b}, y);
}

Status clamp(const ConstView& x, Scalar low, Scalar high, const View& y) {
  const RowKernel kernel = x.dtype == y.dtype ? clamp_row_kernel(computed(x.dtype)) : nullptr;
  if (kernel == nullptr) return no_kernel("clamp", x.dtype, y.dtype);
  if (x.dtype == DType::kInt32) {
    using Range = std::numeric_limits<std::int32_t>;
    low.integer = std::clamp<std::int64_t>(low.integer, Range::min(), Range::max());
    high.integer = std::clamp<std::int64_t>(high.integer, Range::min(), Range::max());
  }
  return run<1>("clamp", kernel, {x}, y, {{low.real, high.real}, {low.integer, high.integer}},
                NarrowFloats::kAsFloat32);
}

Status fill(Scalar value, const View& y) {
  ACCORD_ASSIGN_OR_RETURN(const Element element, element_of(value, y.dtype));
  return run<1>("fill", copy_row_kernel(size_of(y.dtype)), {element.view()}, y);
}

Status arange(Scalar start, Scalar step, const View& y) {
  if (y.layout.dims != 1) {
    return {StatusCode::kInvalidArgument,
            fmt::format("arange: the output must have one dimension, not {}", y.layout.dims)};
  }
  if (y.dtype != DType::kFloat32 && y.dtype != DType::kInt32 && y.dtype != DType::kInt64) {
    return no_kernel("arange", y.dtype, y.dtype);
  }
  const std::int64_t stride = y.layout.strides[0];
  // Unsigned, so that it wraps like the other integer ops.
  const auto number = [&](std::int64_t i) {
    return static_cast<std::uint64_t>(start.integer) +
           static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(step.integer);
  };
  for (std::int64_t i = 0; i < y.layout.sizes[0]; ++i) {
    if (y.dtype == DType::kFloat32) {
      static_cast<float*>(y.data)[i * stride] = static_cast<float>(start.real + static_cast<double>(i) * step.real);
    } else if (y.dtype == DType::kInt32) {
      static_cast<std::int32_t*>(y.data)[i * stride] = static_cast<std::int32_t>(number(i));
    } else {
      static_cast<std::int64_t*>(y.data)[i * stride] = static_cast<std::int64_t>(number(i));
    }
  }
  return {};
}

Status convert(const ConstView& x, const View& y) {
  const RowKernel direct = convert_row_kernel(x.dtype, y.dtype);
  if (direct != nullptr) return run<1>("convert", direct, {x}, y);
  const RowKernel through = convert_row_kernel(computed(x.dtype), computed(y.dtype));
  if (through == nullptr) return no_kernel("convert", x.dtype, y.dtype);
  return run<1>("convert", through, {x}, y, {}, NarrowFloats::kAsFloat32);
}

}  // namespace accord::kernels
