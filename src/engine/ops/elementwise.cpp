// Arithmetic, element by element. Operands are first converted to the output's dtype, which the graph declares, as
// PyTorch's promotion does. Outputs overwrite an input that is not needed afterwards.
#include "engine/ops/elementwise.hpp"

#include <cmath>
#include <limits>

#include "device/numbers.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/ops/promotion.hpp"
#include "engine/program/calls.hpp"

namespace accord::engine {
namespace {

using kernels::BinaryOp;
using kernels::Scalar;
using kernels::UnaryOp;

// PyTorch rounds a number, or a tensor of one element, beside 16-bit floats to their dtype, unless the op multiplies
// or divides by it.
DType number_dtype(BinaryOp kind, DType dtype) {
  const bool exact =
      kind == BinaryOp::kMul || kind == BinaryOp::kDiv || kind == BinaryOp::kFloorDiv || kind == BinaryOp::kTruncDiv;
  return exact && kernels::is_real(dtype) ? DType::kFloat32 : dtype;
}

// Returns a tensor argument in `dtype`, a tensor of one element in `number`, or a number as a tensor without
// dimensions in `number`.
Result<Tensor> operand(Preparation& op, std::string_view name, DType dtype, DType number) {
  if (op.is_tensor(name)) {
    ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor(name));
    return given.count() == 1 ? op.converted(given, number) : promoted(op, given, dtype);
  }
  ACCORD_ASSIGN_OR_RETURN(const Scalar value, op.scalar(name));
  return op.constant(value, number);
}

// self op other, each a tensor or a number.
Status prepare_arithmetic(Preparation& op, BinaryOp kind) {
  const DType dtype = op.declared_dtype();
  ACCORD_RETURN_IF_ERROR(require_number(op, dtype));
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, operand(op, "self", dtype, dtype));
  const DType number = number_dtype(kind, dtype);
  if (!op.is_tensor("other") && !kernels::is_narrow_float(number)) {
    ACCORD_ASSIGN_OR_RETURN(const Scalar other, op.scalar("other"));
    ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_in_place(0, self.sizes(), {self}));
    return op.add(BinaryScalarCall{kind, self, other, y});
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor other, operand(op, "other", dtype, number));
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, broadcast_sizes(op, {self, other}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_in_place(0, sizes, {self, other}));
  return op.add(BinaryCall{kind, self, other, y});
}

// add and sub: other is multiplied by alpha first.
Status prepare_sum(Preparation& op, BinaryOp kind) {
  ACCORD_ASSIGN_OR_RETURN(const double alpha, op.real("alpha", 1.0));
  if (alpha == 1.0) return prepare_arithmetic(op, kind);
  const DType dtype = op.declared_dtype();
  ACCORD_RETURN_IF_ERROR(require_number(op, dtype));
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, operand(op, "self", dtype, dtype));
  ACCORD_ASSIGN_OR_RETURN(const Tensor other, operand(op, "other", dtype, dtype));
  ACCORD_ASSIGN_OR_RETURN(const Tensor factor, operand(op, "alpha", dtype, dtype));
  // PyTorch rounds the factor to the dtype, and in some places the product as well. Its vectorized code rounds only
  // after the addition.
  ACCORD_ASSIGN_OR_RETURN(const Tensor scaled,
                          op.scratch(kernels::is_real(dtype) ? DType::kFloat32 : dtype, other.sizes()));
  ACCORD_RETURN_IF_ERROR(op.add(BinaryCall{BinaryOp::kMul, other, factor, scaled}));
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, broadcast_sizes(op, {self, scaled}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_in_place(0, sizes, {self}));
  return op.add(BinaryCall{kind, self, scaled, y});
}

Status prepare_add(Preparation& op) {
  // In PyTorch, bool + bool is a logical or.
  if (op.declared_dtype() == DType::kBool) return op.unsupported("add has no kernel for bool");
  return prepare_sum(op, BinaryOp::kAdd);
}
Status prepare_sub(Preparation& op) { return prepare_sum(op, BinaryOp::kSub); }
Status prepare_minimum(Preparation& op) { return prepare_arithmetic(op, BinaryOp::kMin); }
Status prepare_maximum(Preparation& op) { return prepare_arithmetic(op, BinaryOp::kMax); }

Status prepare_mul(Preparation& op) {
  if (op.declared_dtype() != DType::kBool) return prepare_arithmetic(op, BinaryOp::kMul);
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor other, op.tensor("other"));
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, broadcast_sizes(op, {self, other}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_in_place(0, sizes, {self, other}));
  return op.add(BinaryCall{BinaryOp::kLogicalAnd, self, other, y});
}

// Division of whole numbers without a rounding mode gives real numbers, as the output's dtype says.
Status prepare_div(Preparation& op) {
  enum Mode { kExact, kTruncated, kFloored };
  ACCORD_ASSIGN_OR_RETURN(const int mode, op.choice("rounding_mode", {"", "trunc", "floor"}));
  const bool real = kernels::is_real(op.declared_dtype());
  if (mode == kFloored) return prepare_arithmetic(op, BinaryOp::kFloorDiv);
  return prepare_arithmetic(op, mode == kTruncated && real ? BinaryOp::kTruncDiv : BinaryOp::kDiv);
}

template <UnaryOp kind>
Status prepare_unary(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, promoted(op, self, op.declared_dtype()));
  constexpr bool whole = kind == UnaryOp::kNeg || kind == UnaryOp::kAbs || kind == UnaryOp::kRelu;
  if (whole) ACCORD_RETURN_IF_ERROR(require_number(op, x.dtype));
  if (!whole) ACCORD_RETURN_IF_ERROR(op.require(x, {DType::kFloat32, DType::kFloat16, DType::kBFloat16}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_in_place(0, x.sizes(), {x}));
  return op.add(UnaryCall{kind, x, y});
}

Status prepare_gelu(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const int approximate, op.choice("approximate", {"none", "tanh"}));
  return approximate == 0 ? prepare_unary<UnaryOp::kGeluErf>(op) : prepare_unary<UnaryOp::kGeluTanh>(op);
}

// tensor ^ number, tensor ^ tensor, number ^ tensor.
Status prepare_pow(Preparation& op) {
  const DType dtype = op.declared_dtype();
  ACCORD_RETURN_IF_ERROR(require_number(op, dtype));
  ACCORD_ASSIGN_OR_RETURN(const Tensor base, operand(op, "self", dtype, dtype));
  if (!op.is_tensor("exponent") && kernels::is_real(dtype)) {
    ACCORD_ASSIGN_OR_RETURN(const double given, op.real("exponent"));
    const double exponent =
        kernels::is_narrow_float(dtype) ? device::rounded_to(dtype, static_cast<float>(given)) : given;
    ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_in_place(0, base.sizes(), {base}));
    return op.add(PowerCall{base, exponent, y});
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor exponent, operand(op, "exponent", dtype, dtype));
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, broadcast_sizes(op, {base, exponent}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_in_place(0, sizes, {base, exponent}));
  return op.add(BinaryCall{BinaryOp::kPow, base, exponent, y});
}

Status prepare_clamp(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, promoted(op, given, op.declared_dtype()));
  ACCORD_RETURN_IF_ERROR(require_number(op, self.dtype));
  const bool narrow = self.dtype == DType::kInt32;
  using Wide = std::numeric_limits<std::int64_t>;
  using Narrow = std::numeric_limits<std::int32_t>;
  const double infinity = std::numeric_limits<double>::infinity();
  const Scalar lowest{-infinity, narrow ? Narrow::min() : Wide::min()};
  const Scalar highest{infinity, narrow ? Narrow::max() : Wide::max()};
  if (op.is_tensor("min") || op.is_tensor("max")) return op.unsupported("bounds that are tensors have no kernel");
  ACCORD_ASSIGN_OR_RETURN(const Scalar low, op.scalar("min", lowest));
  ACCORD_ASSIGN_OR_RETURN(const Scalar high, op.scalar("max", highest));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_in_place(0, self.sizes(), {self}));
  if (std::isnan(low.real) || std::isnan(high.real)) {  // a NaN bound makes every element NaN
    const Scalar nan = Scalar::of(std::numeric_limits<double>::quiet_NaN());
    return op.add(FillCall{nan, y});
  }
  return op.add(ClampCall{self, low, high, y});
}

Status prepare_convert(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  if (self.dtype == op.declared_dtype()) {
    op.alias(0, self);
    return Status();
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, self.sizes()));
  return op.add(ConvertCall{self, y});
}

constexpr OpEntry kElementwiseOps[] = {
    {"aten.add.Tensor", prepare_add},
    {"aten.add.Scalar", prepare_add},
    {"aten.sub.Tensor", prepare_sub},
    {"aten.sub.Scalar", prepare_sub},
    {"aten.mul.Tensor", prepare_mul},
    {"aten.mul.Scalar", prepare_mul},
    {"aten.div.Tensor", prepare_div},
    {"aten.div.Scalar", prepare_div},
    {"aten.div.Tensor_mode", prepare_div},
    {"aten.div.Scalar_mode", prepare_div},
    {"aten.minimum.default", prepare_minimum},
    {"aten.maximum.default", prepare_maximum},
    {"aten.pow.Tensor_Scalar", prepare_pow},
    {"aten.pow.Tensor_Tensor", prepare_pow},
    {"aten.pow.Scalar", prepare_pow},
    {"aten.gelu.default", prepare_gelu},
    {"aten.relu.default", prepare_unary<UnaryOp::kRelu>},
    {"aten.silu.default", prepare_unary<UnaryOp::kSilu>},
    {"aten.tanh.default", prepare_unary<UnaryOp::kTanh>},
    {"aten.sigmoid.default", prepare_unary<UnaryOp::kSigmoid>},
    {"aten.exp.default", prepare_unary<UnaryOp::kExp>},
    {"aten.log.default", prepare_unary<UnaryOp::kLog>},
    {"aten.log1p.default", prepare_unary<UnaryOp::kLog1p>},
    {"aten.sqrt.default", prepare_unary<UnaryOp::kSqrt>},
    {"aten.rsqrt.default", prepare_unary<UnaryOp::kRsqrt>},
    {"aten.neg.default", prepare_unary<UnaryOp::kNeg>},
    {"aten.abs.default", prepare_unary<UnaryOp::kAbs>},
    {"aten.reciprocal.default", prepare_unary<UnaryOp::kReciprocal>},
    {"aten.erf.default", prepare_unary<UnaryOp::kErf>},
    {"aten.sin.default", prepare_unary<UnaryOp::kSin>},
    {"aten.cos.default", prepare_unary<UnaryOp::kCos>},
    {"aten.floor.default", prepare_unary<UnaryOp::kFloor>},
    {"aten.ceil.default", prepare_unary<UnaryOp::kCeil>},
    {"aten.clamp.default", prepare_clamp},
    {"aten._to_copy.default", prepare_convert},
};

}  // namespace

std::span<const OpEntry> elementwise_ops() { return kElementwiseOps; }

}  // namespace accord::engine
