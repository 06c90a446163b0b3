// Reductions over dimensions, and the vector norm, which is the root of a sum of squares.
#include "engine/ops/elementwise.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/ops/promotion.hpp"
#include "engine/ops/rows.hpp"

namespace accord::engine {
namespace {

using kernels::Reduction;

Result<Sizes> reduced_sizes(const Preparation& op, const Tensor& self, const std::vector<int>& dims) {
  ACCORD_ASSIGN_OR_RETURN(const bool keep, op.flag("keepdim", false));
  Sizes sizes;
  for (int dim = 0; dim < self.dims(); ++dim) {
    const bool is_reduced = dims.empty() || std::find(dims.begin(), dims.end(), dim) != dims.end();
    if (!is_reduced) sizes.push_back(self.size(dim));
    if (is_reduced && keep) sizes.push_back(1);
  }
  return sizes;
}

Status prepare_reduction(Preparation& op, Reduction kind) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  const DType dtype = op.declared_dtype();
  // The kernel itself counts a bool in int64.
  const bool counts = kind == Reduction::kSum && self.dtype == DType::kBool && dtype == DType::kInt64;
  Tensor x = self;
  if (!counts) {
    ACCORD_ASSIGN_OR_RETURN(x, op.tensor_as_output("self"));
  }
  const bool truth = kind == Reduction::kAny;
  if (truth) ACCORD_RETURN_IF_ERROR(op.require(x, {DType::kBool}));
  if (kind == Reduction::kMean) ACCORD_RETURN_IF_ERROR(op.require(x, {DType::kFloat32}));
  if (!truth && !counts) ACCORD_RETURN_IF_ERROR(require_number(op, dtype));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<int> dims, op.dimensions("dim", self.dims()));
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, reduced_sizes(op, x, dims));
  if ((kind == Reduction::kMax || kind == Reduction::kMin) && x.count() == 0)
    return op.corrupt("it reduces an empty tensor");
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, sizes));
  return op.add(ReduceCall{kind, x, dims, y});
}

template <Reduction kind>
Status prepare_reduction(Preparation& op) {
  return prepare_reduction(op, kind);
}

Status prepare_vector_norm(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const double order, op.real("ord", 2.0));
  if (order != 2.0) return op.unsupported("only the norm of order 2 has a kernel");
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, op.tensor_as_output("self"));
  ACCORD_RETURN_IF_ERROR(op.require(x, {DType::kFloat32}));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<int> dims, op.dimensions("dim", x.dims()));
  ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, reduced_sizes(op, x, dims));
  ACCORD_ASSIGN_OR_RETURN(const Tensor squares, op.scratch(x.dtype, x.sizes()));
  ACCORD_RETURN_IF_ERROR(op.add(BinaryCall{kernels::BinaryOp::kMul, x, x, squares}));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, sizes));
  ACCORD_RETURN_IF_ERROR(op.add(ReduceCall{Reduction::kSum, squares, dims, y}));
  return op.add(UnaryCall{kernels::UnaryOp::kSqrt, y, y});
}

// Each element is the sum of the elements up to it along the dimension.
Status prepare_cumulative_sum(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor x, op.tensor_as_output("self"));
  ACCORD_RETURN_IF_ERROR(require_number(op, x.dtype));
  if (x.dims() == 0) return op.unsupported("cumsum has no kernel for a scalar");
  ACCORD_ASSIGN_OR_RETURN(const int dim, op.dimension("dim", x.dims()));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, x.sizes()));
  return op.add(CumulativeSumCall{x, dim, y});
}

constexpr OpEntry kReduceOps[] = {
    {"aten.cumsum.default", prepare_cumulative_sum},
    {"aten.sum.dim_IntList", prepare_reduction<Reduction::kSum>},
    {"aten.mean.default", prepare_reduction<Reduction::kMean>},
    {"aten.mean.dim", prepare_reduction<Reduction::kMean>},
    {"aten.amax.default", prepare_reduction<Reduction::kMax>},
    {"aten.amin.default", prepare_reduction<Reduction::kMin>},
    {"aten.any.default", prepare_reduction<Reduction::kAny>},
    {"aten.any.dim", prepare_reduction<Reduction::kAny>},
    {"aten.any.dims", prepare_reduction<Reduction::kAny>},
    {"aten.linalg_vector_norm.default", prepare_vector_norm},
};

}  // namespace

std::span<const OpEntry> reduction_ops() { return kReduceOps; }

}  // namespace accord::engine
