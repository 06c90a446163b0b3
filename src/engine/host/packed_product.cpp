// Rows are taken in blocks, so that prepared rows need little memory. A block is prepared first. Then the threads
// share the panels of all products, numbered consecutively, so that each thread reads its own part of the weights. If
// there are few panels and many rows, the threads share the rows instead.
#include "engine/host/packed_product.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/host/run.hpp"
#include "engine/ops/elementwise.hpp"

namespace accord::engine::host {
namespace {

// Rereading the weights for each block costs little beside the arithmetic.
constexpr std::int64_t kProductBlockRows = 960;
constexpr std::int64_t kProductRowGrain = 16;
constexpr std::int64_t kMinPanelsPerThread = 4;  // with fewer per thread, one panel more or less makes a difference

struct PackedProducts {
  RowTensor x;
  kernels::RowsLayout layout;  // for the largest block
  Tensor rows;                 // a block's rows, prepared
  Tensor scratch;              // per thread
  std::vector<PackedProduct> products;

  std::int64_t panels() const;
  Status run(const Execution& execution) const;
  Status run_block(const Execution& execution, const kernels::RowsLayout& block, std::int64_t first_row) const;
};

std::int64_t PackedProducts::panels() const {
  std::int64_t count = 0;
  for (const PackedProduct& product : products) count += product.weights.panels();
  return count;
}

Status PackedProducts::run(const Execution& execution) const {
  kernels::RowsLayout block = layout;
  for (std::int64_t row = 0; row < x.rows.rows; row += kProductBlockRows) {
    block.rows = std::min(kProductBlockRows, x.rows.rows - row);
    ACCORD_RETURN_IF_ERROR(run_block(execution, block, row));
  }
  return Status();
}

Status PackedProducts::run_block(const Execution& execution, const kernels::RowsLayout& block,
                                 std::int64_t first_row) const {
  const auto row_of = [&](const Tensor& tensor, std::int64_t stride) {
    return execution.address(tensor) + first_row * stride * static_cast<std::int64_t>(size_of(tensor.dtype));
  };
  const kernels::ConstRows given{row_of(x.tensor, x.rows.stride), x.tensor.dtype, x.rows.stride};
  const int parts = pool_of(execution).threads();
  const int preparing = block.rows < kProductRowGrain ? 1 : parts;
  ACCORD_RETURN_IF_ERROR(pool_of(execution).run(preparing, [&](int part) {
    const PartRange range = part_range(block.rows, 1, part, preparing);
    kernels::prepare_rows(block, given, range.first, range.last, execution.address(rows));
    return Status();
  }));
  const std::int64_t count = panels();
  const bool by_rows = count < kMinPanelsPerThread * parts && block.rows >= kProductRowGrain * parts;
  return pool_of(execution).run(parts, [&](int part, int thread) {
    const PartRange range =
        by_rows ? part_range(block.rows, kProductRowGrain, part, parts) : part_range(count, 1, part, parts);
    std::int64_t first_panel = 0;  // of this product, among the panels of all products
    for (const PackedProduct& product : products) {
      kernels::ProductCall call;
      call.weights = &product.weights;
      call.gate = product.gate ? &*product.gate : nullptr;
      call.layout = &block;
      call.x = execution.address(rows);
      call.bias = product.bias ? execution.data<const float>(*product.bias) : nullptr;
      call.gate_bias = product.gate_bias ? execution.data<const float>(*product.gate_bias) : nullptr;
      call.activation = product.activation;
      call.y = {row_of(product.y, product.weights.out()), product.y.dtype, product.weights.out()};
      kernels::ProductShare share = kernels::full_share(call);
      const std::int64_t product_panels = share.last_panel;
      if (by_rows) {
        share.first_row = range.first;
        share.last_row = range.last;
      } else {
        share.first_panel = std::clamp<std::int64_t>(range.first - first_panel, 0, product_panels);
        share.last_panel = std::clamp<std::int64_t>(range.last - first_panel, 0, product_panels);
      }
      first_panel += product_panels;
      if (share.first_panel == share.last_panel) continue;
      std::byte* const mine = execution.address(scratch) + thread * scratch.stride(0);
      ACCORD_RETURN_IF_ERROR(kernels::product(call, share, {mine, kernels::kProductScratch}));
    }
    return Status();
  });
}

}  // namespace

Status add_packed_products(Preparation& op, const RowTensor& x, const std::vector<PackedProduct>& products) {
  PackedProducts step;
  step.x = x;
  step.products = products;
  const kernels::PackedMatrix& weights = products.front().weights;
  const kernels::Arithmetic arithmetic = op.arithmetic(x.tensor.dtype, weights.format);
  ACCORD_ASSIGN_OR_RETURN(step.layout, kernels::rows_layout(weights, arithmetic, x.rows.rows));
  const auto bytes = static_cast<std::int64_t>(step.layout.bytes());
  ACCORD_ASSIGN_OR_RETURN(step.rows, op.scratch(DType::kUInt8, {bytes}));
  constexpr auto kScratch = static_cast<std::int64_t>(kernels::kProductScratch);
  ACCORD_ASSIGN_OR_RETURN(step.scratch, op.scratch(DType::kUInt8, {op.threads(), kScratch}));
  op.step([step = std::move(step)](const Execution& execution) { return step.run(execution); });
  return Status();
}

Status add_product_of_pieces(Preparation& op, const RowTensor& x, const PackedProduct& product, std::int64_t pieces) {
  const kernels::PackedMatrix& weights = product.weights;
  if (weights.in_units % pieces != 0 || weights.in_padding != 0) {
    return op.unsupported(fmt::format("these inputs cannot be summed in {} pieces", pieces));
  }
  PackedProduct one = product;
  one.weights.in_units /= pieces;
  RowTensor columns = x;
  columns.rows.width = one.weights.in();
  std::vector<Tensor> sums;
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    if (piece > 0) {
      ACCORD_ASSIGN_OR_RETURN(one.y, op.scratch(DType::kFloat32, product.y.sizes()));
    }
    ACCORD_RETURN_IF_ERROR(add_packed_products(op, columns, {one}));
    sums.push_back(one.y);
    columns.tensor.offset += one.weights.in() * static_cast<std::int64_t>(size_of(x.tensor.dtype));
    one.weights.data += one.weights.in_units * one.weights.in_unit_stride;
  }
  for (std::size_t apart = 1; apart < sums.size(); apart *= 2) {
    for (std::size_t i = 0; i < sums.size(); i += 2 * apart)
      ACCORD_RETURN_IF_ERROR(op.add(BinaryCall{kernels::BinaryOp::kAdd, sums[i], sums[i + apart], sums[i]}));
  }
  return Status();
}

}  // namespace accord::engine::host
