// Ops on truth values. Comparisons convert their operands to the dtype in which PyTorch compares them, logical ops to
// bool. `where` chooses between two tensors in the output's dtype.
#include "engine/ops/elementwise.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/ops/promotion.hpp"

namespace accord::engine {
namespace {

using kernels::BinaryOp;
using kernels::Scalar;
using kernels::UnaryOp;

// A number is rounded to the dtype, or wraps in it: compared with bfloat16, 0.3 is the bfloat16 0.30078125.
Status prepare_comparison(Preparation& op, BinaryOp kind) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  Tensor other;
  DType dtype = self.dtype;
  if (op.is_tensor("other")) {
    ACCORD_ASSIGN_OR_RETURN(other, op.tensor("other"));
    dtype = common_dtype(self, other);
  } else {
    ACCORD_ASSIGN_OR_RETURN(const Scalar number, op.scalar("other"));
    dtype = with_number(self.dtype, op.scalar_dtype("other"));
    ACCORD_ASSIGN_OR_RETURN(other, op.constant(number, dtype));
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor a, op.converted(self, dtype));
  ACCORD_ASSIGN_OR_RETURN(const Tensor b, op.converted(other, dtype));
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, broadcast_sizes(op, {a, b}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, sizes));
  return op.add(BinaryCall{kind, a, b, y});
}

Status prepare_eq(Preparation& op) { return prepare_comparison(op, BinaryOp::kEq); }
Status prepare_ne(Preparation& op) { return prepare_comparison(op, BinaryOp::kNe); }
Status prepare_lt(Preparation& op) { return prepare_comparison(op, BinaryOp::kLt); }
Status prepare_le(Preparation& op) { return prepare_comparison(op, BinaryOp::kLe); }
Status prepare_gt(Preparation& op) { return prepare_comparison(op, BinaryOp::kGt); }
Status prepare_ge(Preparation& op) { return prepare_comparison(op, BinaryOp::kGe); }

// Logical ops take any dtype and return bool.
Status prepare_logical(Preparation& op, BinaryOp kind) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  Tensor other;
  if (op.is_tensor("other")) {
    ACCORD_ASSIGN_OR_RETURN(other, op.tensor("other"));
  } else {
    ACCORD_ASSIGN_OR_RETURN(const Scalar number, op.scalar("other"));
    ACCORD_ASSIGN_OR_RETURN(other, op.constant(Scalar::of(std::int64_t{number.real != 0.0}), DType::kBool));
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor a, op.converted(self, DType::kBool));
  ACCORD_ASSIGN_OR_RETURN(const Tensor b, op.converted(other, DType::kBool));
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, broadcast_sizes(op, {a, b}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_in_place(0, sizes, {a, b}));
  return op.add(BinaryCall{kind, a, b, y});
}

Status prepare_logical_and(Preparation& op) { return prepare_logical(op, BinaryOp::kLogicalAnd); }
Status prepare_logical_or(Preparation& op) { return prepare_logical(op, BinaryOp::kLogicalOr); }
Status prepare_logical_xor(Preparation& op) { return prepare_logical(op, BinaryOp::kLogicalXor); }

Status prepare_logical_not(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, op.converted(self, DType::kBool));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_in_place(0, x.sizes(), {x}));
  return op.add(UnaryCall{UnaryOp::kLogicalNot, x, y});
}

// On bool, bitwise ops are logical ops. On numbers they have no kernel.
Status require_bool_output(const Preparation& op) {
  return op.declared_dtype() == DType::kBool ? Status() : op.unsupported("bitwise ops have kernels only for bool");
}
Status prepare_bitwise_and(Preparation& op) {
  ACCORD_RETURN_IF_ERROR(require_bool_output(op));
  return prepare_logical_and(op);
}
Status prepare_bitwise_or(Preparation& op) {
  ACCORD_RETURN_IF_ERROR(require_bool_output(op));
  return prepare_logical_or(op);
}
Status prepare_bitwise_not(Preparation& op) {
  ACCORD_RETURN_IF_ERROR(require_bool_output(op));
  return prepare_logical_not(op);
}

Status prepare_where(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor condition, op.tensor("condition"));
  ACCORD_RETURN_IF_ERROR(op.require(condition, {DType::kBool}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor other, op.tensor("other"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor yes, promoted(op, self, op.declared_dtype()));
  ACCORD_ASSIGN_OR_RETURN(const Tensor no, promoted(op, other, op.declared_dtype()));
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, broadcast_sizes(op, {condition, yes, no}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make_in_place(0, sizes, {yes, no}));
  return op.add(WhereCall{condition, yes, no, y});
}

constexpr OpEntry kLogicalOps[] = {
    {"aten.eq.Tensor", prepare_eq},
    {"aten.eq.Scalar", prepare_eq},
    {"aten.ne.Tensor", prepare_ne},
    {"aten.ne.Scalar", prepare_ne},
    {"aten.lt.Tensor", prepare_lt},
    {"aten.lt.Scalar", prepare_lt},
    {"aten.le.Tensor", prepare_le},
    {"aten.le.Scalar", prepare_le},
    {"aten.gt.Tensor", prepare_gt},
    {"aten.gt.Scalar", prepare_gt},
    {"aten.ge.Tensor", prepare_ge},
    {"aten.ge.Scalar", prepare_ge},
    {"aten.logical_and.default", prepare_logical_and},
    {"aten.logical_or.default", prepare_logical_or},
    {"aten.logical_xor.default", prepare_logical_xor},
    {"aten.logical_not.default", prepare_logical_not},
    {"aten.bitwise_and.Tensor", prepare_bitwise_and},
    {"aten.bitwise_and.Scalar", prepare_bitwise_and},
    {"aten.bitwise_or.Tensor", prepare_bitwise_or},
    {"aten.bitwise_or.Scalar", prepare_bitwise_or},
    {"aten.bitwise_not.default", prepare_bitwise_not},
    {"aten.where.self", prepare_where},
};

}  // namespace

std::span<const OpEntry> logical_ops() { return kLogicalOps; }

}  // namespace accord::engine
