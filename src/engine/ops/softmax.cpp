// Softmax and log-softmax: rows of one dimension, divided among threads.
#include "engine/gpu/row_steps.hpp"
#include "engine/ops/op_registry.hpp"
#include "engine/host/row_parts.hpp"
#include "kernels/normalize.hpp"

namespace accord::engine {
namespace {

using SoftmaxKernel = void (*)(const kernels::RowsCall&);

// A dimension other than the last is moved to the end, and the output is a view.
Status prepare_softmax(Preparation& op, SoftmaxKernel kernel) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor given, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(Tensor self, op.converted(given, op.declared_dtype()));
  ACCORD_RETURN_IF_ERROR(op.require(self, {DType::kFloat32}));
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
    ACCORD_ASSIGN_OR_RETURN(y, op.make_over(0, sizes, {x.tensor}));
  } else {
    ACCORD_ASSIGN_OR_RETURN(y, op.make_ordered(0, sizes, order));
  }
  op.step(
      [=](const Execution& execution) {
        return for_rows(execution, x.rows.rows, [&](const PartRange& range) {
          kernels::RowsCall rows;
          rows.x = execution.data<const float>(x.tensor) + range.first * x.rows.stride;
          rows.x_row_stride = x.rows.stride;
          rows.y = execution.data<float>(y) + range.first * x.rows.width;
          rows.y_row_stride = x.rows.width;
          rows.rows = range.last - range.first;
          rows.width = x.rows.width;
          kernel(rows);
        });
      },
      [&] { return softmax_on_device(kernel == kernels::log_softmax, x.tensor, x.rows, y); });
  return Status();
}

Status prepare_softmax(Preparation& op) { return prepare_softmax(op, kernels::softmax); }
Status prepare_log_softmax(Preparation& op) { return prepare_softmax(op, kernels::log_softmax); }

constexpr OpEntry kSoftmaxOps[] = {
    {"aten._softmax.default", prepare_softmax},
    {"aten._log_softmax.default", prepare_log_softmax},
};

}  // namespace

std::span<const OpEntry> softmax_ops() { return kSoftmaxOps; }

}  // namespace accord::engine
