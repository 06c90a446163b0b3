#include "engine/gpu/index.hpp"

#include <fmt/format.h>

#include "engine/gpu/elementwise.hpp"
#include "engine/gpu/float8_products.hpp"
#include "engine/gpu/kernels/float8_kernels.hpp"
#include "engine/gpu/kernels/index_kernels.hpp"
#include "engine/gpu/run.hpp"
#include "engine/gpu/steps.hpp"

namespace accord::engine {
namespace {

Step widen_rows_step(const Node* node, const RowLookup& lookup) {
  WidenRows kernel;
  kernel.id_dtype = lookup.ids.dtype;
  kernel.count = lookup.ids.count();
  kernel.width = lookup.table.size(1);
  kernel.table_rows = lookup.table.size(0);
  kernel.first_row = lookup.first_row;
  kernel.total_rows = lookup.total_rows;
  kernel.y_dtype = lookup.y.dtype;
  return [=](const Execution& execution) {
    WidenRows placed = kernel;
    placed.table = weight_operand(execution, lookup.table);
    placed.ids = execution.address(lookup.ids);
    placed.y = execution.address(lookup.y);
    placed.report = report_of(device_run(execution), node);
    return launch_over(device_run(execution), placed, ceil_divide(placed.count * placed.width, kSixteen));
  };
}

}  // namespace

Step gather_rows_step(const Node* node, const RowLookup& lookup) {
  if (is_float8(lookup.table)) return widen_rows_step(node, lookup);
  const auto element = static_cast<std::int64_t>(size_of(lookup.table.dtype));
  GatherRows kernel;
  kernel.id_dtype = lookup.ids.dtype;
  kernel.count = lookup.ids.count();
  kernel.table_rows = lookup.table.size(0);
  kernel.first_row = lookup.first_row;
  kernel.total_rows = lookup.total_rows;
  kernel.row_bytes = lookup.table.size(1) * element;
  kernel.table_row_stride = lookup.table_row_stride * element;
  return [=](const Execution& execution) {
    GatherRows placed = kernel;
    placed.ids = execution.address(lookup.ids);
    placed.table = execution.address(lookup.table);
    placed.y = execution.address(lookup.y);
    placed.report = report_of(device_run(execution), node);
    return launch_blocks(device_run(execution), placed, placed.count);
  };
}

namespace gpu {
namespace {

Status add_embedding(Preparation& op, const EmbeddingCall& call) {
  const RowLookup& lookup = call.lookup;
  if (!is_float8(lookup.table)) ACCORD_RETURN_IF_ERROR(op.require(lookup.y, {lookup.table.dtype}));
  op.step(gather_rows_step(&op.node(), lookup));
  return Status();
}

Status add_pick(Preparation& op, const PickCall& call) {
  if (call.ids.size() > Pick::kMaxIds)
    return op.unsupported(fmt::format("indexing more than {} dimensions has no kernel for GPUs", Pick::kMaxIds));
  Pick kernel;
  kernel.count = call.y.count();
  kernel.places = 1;
  for (const std::int64_t size : call.picked) kernel.places *= size;
  kernel.indexed = static_cast<int>(call.ids.size());
  kernel.counts_back = call.from_end == FromEnd::kYes;
  kernel.after = 1;
  for (int dim = call.first + kernel.indexed; dim < call.x.dims(); ++dim) kernel.after *= call.x.size(dim);
  kernel.picked = shape_of(kernels::contiguous_layout(call.picked));
  for (std::size_t i = 0; i < call.ids.size(); ++i) {
    kernel.sizes[i] = call.x.size(call.first + static_cast<int>(i));
    kernel.ids[i] = operand_of(call.ids[i], call.picked);
  }
  kernel.element = static_cast<std::int64_t>(size_of(call.x.dtype));
  op.step([kernel, call, node = &op.node()](const Execution& execution) {
    Pick placed = kernel;
    placed.x = execution.address(call.x);
    placed.y = execution.address(call.y);
    for (std::size_t i = 0; i < call.ids.size(); ++i) placed.ids[i].data = execution.address(call.ids[i]);
    placed.report = report_of(device_run(execution), node);
    return launch_over(device_run(execution), placed, placed.count);
  });
  return Status();
}

Status add_gather_elements(Preparation& op, const GatherElementsCall& call) {
  const auto& [x, dim, index, y] = call;
  GatherElements kernel;
  kernel.count = y.count();
  kernel.shape = shape_of(y.layout);
  kernel.size = x.size(dim);
  kernel.stride = x.stride(dim);
  for (int i = 0; i < y.dims(); ++i) {
    kernel.operands[0].strides[i] = y.stride(i);
    kernel.operands[1].strides[i] = i == dim ? 0 : x.stride(i);
    kernel.operands[2].strides[i] = index.stride(i);
  }
  kernel.operands[2].dtype = index.dtype;
  kernel.element = static_cast<std::int64_t>(size_of(x.dtype));
  op.step([kernel, call, node = &op.node()](const Execution& execution) {
    GatherElements placed = kernel;
    placed.operands[0].data = execution.address(call.y);
    placed.operands[1].data = execution.address(call.x);
    placed.operands[2].data = execution.address(call.index);
    placed.report = report_of(device_run(execution), node);
    return launch_over(device_run(execution), placed, placed.count);
  });
  return Status();
}

}  // namespace

void set_index_steps(StepTable& table) {
  table.set<EmbeddingCall>(add_embedding);
  table.set<PickCall>(add_pick);
  table.set<GatherElementsCall>(add_gather_elements);
}

}  // namespace gpu
}  // namespace accord::engine
