#include "engine/gpu/index_steps.hpp"

#include "engine/gpu/run.hpp"
#include "engine/gpu/elementwise.hpp"
#include "engine/gpu/kernels/float8_kernels.hpp"
#include "engine/gpu/float8_products.hpp"
#include "engine/gpu/kernels/index_kernels.hpp"

namespace accord::engine {

static_assert(kMostPickedIds == Pick::kMostIds);

namespace {

Step widen_rows_on_device(const Node* node, const RowLookup& lookup) {
  WidenRows kernel;
  kernel.id_dtype = lookup.ids.dtype;
  kernel.count = lookup.ids.count();
  kernel.width = lookup.table.size(1);
  kernel.table_rows = lookup.table.size(0);
  kernel.first_row = lookup.first_row;
  kernel.rows_in_all = lookup.rows_in_all;
  kernel.y_dtype = lookup.y.dtype;
  return [=](const Execution& execution) {
    WidenRows placed = kernel;
    placed.table = execution.address(lookup.table);
    placed.scales = execution.data<const float>(scales_of(lookup.table));
    placed.ids = execution.address(lookup.ids);
    placed.y = execution.address(lookup.y);
    placed.report = report_of(device_run(execution), node);
    return launch_over(device_run(execution), placed, quotient_of_blocks(placed.count * placed.width, kSixteen));
  };
}

}  // namespace

Step gather_rows_on_device(const Node* node, const RowLookup& lookup) {
  if (is_float8(lookup.table)) return widen_rows_on_device(node, lookup);
  const auto element = static_cast<std::int64_t>(size_of(lookup.table.dtype));
  GatherRows kernel;
  kernel.id_dtype = lookup.ids.dtype;
  kernel.count = lookup.ids.count();
  kernel.table_rows = lookup.table.size(0);
  kernel.first_row = lookup.first_row;
  kernel.rows_in_all = lookup.rows_in_all;
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

Step pick_on_device(const Node* node, const Picking& picking) {
  const auto& [x, ids, first, from_end, picked, y] = picking;
  Pick kernel;
  kernel.count = y.count();
  kernel.places = 1;
  for (const std::int64_t size : picked) kernel.places *= size;
  kernel.indexed = static_cast<int>(ids.size());
  kernel.counts_back = from_end == FromEnd::kYes;
  kernel.after = 1;
  for (int dim = first + kernel.indexed; dim < x.dims(); ++dim) kernel.after *= x.size(dim);
  kernel.picked = shape_of(kernels::contiguous_layout(picked));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    kernel.sizes[i] = x.size(first + static_cast<int>(i));
    kernel.ids[i] = operand_of(ids[i], picked);
  }
  kernel.element = static_cast<std::int64_t>(size_of(x.dtype));
  return [=](const Execution& execution) {
    Pick placed = kernel;
    placed.x = execution.address(picking.x);
    placed.y = execution.address(picking.y);
    for (std::size_t i = 0; i < picking.ids.size(); ++i) placed.ids[i].data = execution.address(picking.ids[i]);
    placed.report = report_of(device_run(execution), node);
    return launch_over(device_run(execution), placed, placed.count);
  };
}

Step gather_elements_on_device(const Node* node, const Tensor& x, int dim, const Tensor& index, const Tensor& y) {
  GatherElements kernel;
  kernel.count = y.count();
  kernel.shape = shape_of(y.layout);
  const auto at = static_cast<std::size_t>(dim);
  kernel.size = x.dims() == 0 ? 1 : x.size(dim);
  kernel.stride = x.dims() == 0 ? 0 : x.stride(dim);
  for (int i = 0; i < y.dims(); ++i) {
    const auto each = static_cast<std::size_t>(i);
    kernel.operands[0].strides[i] = y.stride(i);
    kernel.operands[1].strides[i] = each == at ? 0 : x.stride(i);
    kernel.operands[2].strides[i] = index.stride(i);
  }
  kernel.operands[2].dtype = index.dtype;
  kernel.element = static_cast<std::int64_t>(size_of(x.dtype));
  return [=](const Execution& execution) {
    GatherElements placed = kernel;
    placed.operands[0].data = execution.address(y);
    placed.operands[1].data = execution.address(x);
    placed.operands[2].data = execution.address(index);
    placed.report = report_of(device_run(execution), node);
    return launch_over(device_run(execution), placed, placed.count);
  };
}

}  // namespace accord::engine
