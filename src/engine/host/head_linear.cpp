// A product with a matrix for each head. A part of the work is some rows of one head and some panels of its matrix: a
// thread prepares the rows in memory of its own, and multiplies them. Heads are cut into panels only if there are fewer
// heads than threads. A row's bits depend on that row alone.
#include <algorithm>

#include "base/rounding.hpp"
#include "engine/host/run.hpp"
#include "engine/host/steps.hpp"
#include "engine/ops/matrix.hpp"
#include "kernels/linear/product.hpp"

namespace accord::engine::host {
namespace {

constexpr std::int64_t kRowsOfHead = 128;  // prepared together, while they are in the cache

struct HeadProducts {
  HeadLinearCall call;
  kernels::RowsLayout layout;  // for the largest block of rows
  Tensor rows, scratch;        // per thread
  int panel_parts = 1;         // of one head

  Status run(const Execution& execution, int part, int thread) const;
};

template <typename RowsOf>
RowsOf rows_at(const Execution& execution, const Tensor& tensor, std::int64_t row, std::int64_t head) {
  const std::int64_t first = row * tensor.stride(0) + head * tensor.stride(1);
  return {execution.address(tensor) + first * static_cast<std::int64_t>(size_of(tensor.dtype)), tensor.dtype,
          tensor.stride(0)};
}

Status HeadProducts::run(const Execution& execution, int part, int thread) const {
  const std::int64_t heads = call.x.size(1), head = part / panel_parts % heads;
  const std::int64_t first_row = part / panel_parts / heads * kRowsOfHead;
  kernels::RowsLayout block = layout;
  block.rows = std::min(kRowsOfHead, call.x.size(0) - first_row);
  std::byte* const prepared = execution.address(rows) + thread * rows.stride(0);
  kernels::prepare_rows(block, rows_at<kernels::ConstRows>(execution, call.x, first_row, head), 0, block.rows,
                        prepared);
  const kernels::PackedMatrix weights = call.packed->matrix(head);
  kernels::ProductCall product;
  product.weights = &weights;
  product.layout = &block;
  product.x = prepared;
  product.y = rows_at<kernels::Rows>(execution, call.y, first_row, head);
  kernels::ProductShare share = kernels::full_share(product);
  const PartRange panels = part_range(share.last_panel, 1, part % panel_parts, panel_parts);
  share.first_panel = panels.first;
  share.last_panel = panels.last;
  return kernels::product(product, share,
                          {execution.address(scratch) + thread * scratch.stride(0), kernels::kProductScratch});
}

Status add_head_linear(Preparation& op, const HeadLinearCall& call) {
  if (call.packed == nullptr) return op.unsupported("a product by head has a kernel only with weights of the package");
  if (call.y.count() == 0) return Status();
  HeadProducts step{call, {}, {}, {}};
  const kernels::PackedMatrix weights = call.packed->matrix(0);
  const std::int64_t heads = call.x.size(1), blocks = quotient_up(call.x.size(0), kRowsOfHead);
  ACCORD_ASSIGN_OR_RETURN(step.layout, kernels::rows_layout(weights, op.arithmetic(call.x.dtype, weights.format),
                                                            std::min(kRowsOfHead, call.x.size(0))));
  const auto bytes = static_cast<std::int64_t>(round_up(step.layout.bytes(), 64));
  ACCORD_ASSIGN_OR_RETURN(step.rows, op.scratch(DType::kUInt8, {op.threads(), bytes}));
  constexpr auto kScratch = static_cast<std::int64_t>(kernels::kProductScratch);
  ACCORD_ASSIGN_OR_RETURN(step.scratch, op.scratch(DType::kUInt8, {op.threads(), kScratch}));
  const std::int64_t wanted = quotient_up(static_cast<std::int64_t>(op.threads()), heads * blocks);
  step.panel_parts = static_cast<int>(std::clamp<std::int64_t>(wanted, 1, weights.panels()));
  const auto parts = static_cast<int>(blocks * heads) * step.panel_parts;
  op.step([step, parts](const Execution& execution) {
    return pool_of(execution).run(parts, [&](int part, int thread) { return step.run(execution, part, thread); });
  });
  return Status();
}

}  // namespace

void set_head_linear_steps(StepTable& table) { table.set<HeadLinearCall>(add_head_linear); }

}  // namespace accord::engine::host
