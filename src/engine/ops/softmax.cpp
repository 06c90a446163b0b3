// Softmax and log-softmax along one dimension.
#include "engine/ops/op_registry.hpp"
#include "engine/ops/rows.hpp"
#include "kernels/index.hpp"

namespace accord::engine {
namespace {

// A dimension other than the last is moved to the end, and the output is a view.
Status prepare_softmax(Preparation& op, bool is_logarithm) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(Tensor self, op.converted(given, op.declared_dtype()));
  ACCORD_ASSIGN_OR_RETURN(const int dim, op.dimension("dim", self.dims()));
  std::vector<int> order;
  for (int i = 0; i < self.dims(); ++i) {
    if (i != dim) order.push_back(i);
  }
  if (self.dims() > 0) order.push_back(dim);
  const Sizes sizes = self.sizes();
  const bool last = dim == self.dims() - 1 || self.dims() == 0;
  if (!last) self.layout = kernels::permuted_layout(self.layout, order);
  ACCORD_ASSIGN_OR_RETURN(const RowTensor x, rows_of(op, self));
  Tensor y;
  if (last) {
    ACCORD_ASSIGN_OR_RETURN(y, op.make_in_place(0, sizes, {x.tensor}));
  } else {
    ACCORD_ASSIGN_OR_RETURN(y, op.make_ordered(0, sizes, order));
  }
  return op.add(SoftmaxCall{is_logarithm, x.tensor, x.rows, y});
}

Status prepare_softmax(Preparation& op) { return prepare_softmax(op, false); }
Status prepare_log_softmax(Preparation& op) { return prepare_softmax(op, true); }

constexpr OpEntry kSoftmaxOps[] = {
    {"aten._softmax.default", prepare_softmax},
    {"aten._log_softmax.default", prepare_log_softmax},
};

}  // namespace

std::span<const OpEntry> softmax_ops() { return kSoftmaxOps; }

}  // namespace accord::engine
