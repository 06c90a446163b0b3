// Ops that create tensors from numbers. They depend on no input, so small ones are computed once per shape.
#include "engine/ops/elementwise.hpp"
#include "engine/ops/op_registry.hpp"

namespace accord::engine {
namespace {

using kernels::Scalar;

Status add_fill(Preparation& op, const Sizes& sizes, Scalar value) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, sizes));
  return op.add(FillCall{value, y});
}

Status prepare_full(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, op.integers("size"));
  ACCORD_ASSIGN_OR_RETURN(const Scalar value, op.scalar("fill_value"));
  return add_fill(op, sizes, value);
}

Status prepare_full_like(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Scalar value, op.scalar("fill_value"));
  return add_fill(op, self.sizes(), value);
}

Status prepare_scalar_tensor(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Scalar value, op.scalar("s"));
  return add_fill(op, {}, value);
}

// The graph declares the number of elements, which must be ceil((end - start) / step).
Status prepare_arange(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Scalar start, op.scalar("start", Scalar::of(std::int64_t{0})));
  ACCORD_ASSIGN_OR_RETURN(const Scalar end, op.scalar("end"));
  ACCORD_ASSIGN_OR_RETURN(const Scalar step, op.scalar("step", Scalar::of(std::int64_t{1})));
  const DType dtype = op.declared_dtype();
  if (dtype != DType::kFloat32 && dtype != DType::kInt32 && dtype != DType::kInt64) {
    return op.unsupported("arange has no kernel for " + std::string(to_string(dtype)));
  }
  for (const Scalar& number : {start, end, step}) {
    const bool whole = number.real == static_cast<double>(number.integer);
    if (dtype != DType::kFloat32 && !whole)
      return op.unsupported("arange has no kernel for whole numbers with a fractional start, end or step");
  }
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, op.declared_sizes());
  const double exact = step.real == 0.0 ? -1.0 : (end.real - start.real) / step.real;
  if (sizes.size() != 1 || exact < 0.0 || exact > static_cast<double>(sizes[0]) ||
      exact <= static_cast<double>(sizes[0]) - 1.0) {
    return op.corrupt("its start, end and step do not give as many elements as the graph declares");
  }
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, sizes));
  return op.add(CountCall{start, step, y});
}

constexpr OpEntry kCreateOps[] = {
    {"aten.full.default", prepare_full},
    {"aten.full_like.default", prepare_full_like},
    {"aten.scalar_tensor.default", prepare_scalar_tensor},
    {"aten.arange.start_step", prepare_arange},
};

}  // namespace

std::span<const OpEntry> creation_ops() { return kCreateOps; }

}  // namespace accord::engine
