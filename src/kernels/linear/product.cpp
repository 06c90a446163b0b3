// Products run panel by panel, in blocks of rows whose sums stay in the L2 cache. With few rows, as many panels are
// processed at once as there is room for their sums: if `in` is split into blocks, each block is then read front to
// back. With one row or few, the weights are read from memory once; with many, they are read again from the caches
// for each block of rows.

#include "kernels/linear/product.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/linear/epilogue.hpp"
#include "kernels/linear/panel_sums.hpp"
#include "kernels/view.hpp"

namespace accord::kernels {

namespace {

constexpr std::int64_t kSumRows = 240;  // capacity in rows of panels; a multiple of the rows of a register block
constexpr std::int64_t kSums = kSumRows * kAccumulatorStride;

ConstRows at(const ConstRows& rows, std::int64_t row, std::int64_t column) {
  if (rows.data == nullptr) return rows;
  const std::int64_t offset = (row * rows.stride + column) * static_cast<std::int64_t>(size_of(rows.dtype));
  return {static_cast<const std::byte*>(rows.data) + offset, rows.dtype, rows.stride};
}

Rows at(const Rows& rows, std::int64_t row, std::int64_t column) {
  const std::int64_t offset = (row * rows.stride + column) * static_cast<std::int64_t>(size_of(rows.dtype));
  return {static_cast<std::byte*>(rows.data) + offset, rows.dtype, rows.stride};
}

// Runs the epilogue of one panel for rows [row, row + rows).
void end_panel(const ProductCall& call, std::int64_t panel, std::int64_t row, std::int64_t rows, const float* sums,
               const float* gate) {
  const std::int64_t out_unit = call.weights->out_unit, per_unit = panels_of(out_unit);
  const std::int64_t in_unit = panel % per_unit * kPanelWidth;
  const std::int64_t column = panel / per_unit * out_unit + in_unit;
  EpilogueCall epilogue;
  epilogue.rows = rows;
  epilogue.columns = std::min({kPanelWidth, out_unit - in_unit, call.weights->out() - column});
  if (epilogue.columns <= 0) return;  // the panel is only padding of a block
  epilogue.sums = sums;
  epilogue.bias = call.bias == nullptr ? nullptr : call.bias + column;
  epilogue.gate = call.gate == nullptr ? nullptr : gate;
  epilogue.gate_bias = call.gate_bias == nullptr ? nullptr : call.gate_bias + column;
  epilogue.activation = call.activation;
  epilogue.residual = at(call.residual, row, column);
  epilogue.y = at(call.y, row, column);
  run_epilogue(epilogue);
}

Status check(const ProductCall& call, const ProductShare& share, std::span<const std::byte> scratch) {
  const auto invalid = [&](const std::string& why) { return Status(StatusCode::kInvalidArgument, "product: " + why); };
  const PackedMatrix& weights = *call.weights;
  if (!call.layout->fits(weights)) return invalid("the rows were not prepared for these weights");
  if (call.gate != nullptr &&
      (!call.layout->fits(*call.gate) || call.gate->out_unit != weights.out_unit ||
       call.gate->out_units != weights.out_units || call.gate->out_padding != weights.out_padding)) {
    return invalid("the gate must have the format and the sizes of the weights");
  }
  if (!is_real(call.y.dtype) || !is_real(call.residual.dtype)) {
    return invalid("results and residuals must be float32, bfloat16 or float16");
  }
  const std::int64_t rows = share.last_row - share.first_row;
  if (share.first_panel < 0 || share.last_panel > weights.panels() || share.first_row < 0 || rows < 0 ||
      share.last_row > call.layout->rows) {
    return invalid(fmt::format("panels {} to {} and rows {} to {} are out of range: there are {} panels and {} rows",
                               share.first_panel, share.last_panel, share.first_row, share.last_row, weights.panels(),
                               call.layout->rows));
  }
  const bool overlaps =
      call.y.stride < weights.out() || (call.residual.data != nullptr && call.residual.stride < weights.out());
  if (rows > 1 && overlaps) return invalid(fmt::format("rows overlap: a row has {} elements", weights.out()));
  if (scratch.size() < kProductScratch) return invalid(fmt::format("{} bytes of scratch are too few", scratch.size()));
  return {};
}

static_assert(kProductScratch == (2 * kSums + kTileWords) * 4);

}  // namespace

ProductShare full_share(const ProductCall& call) { return {0, call.weights->panels(), 0, call.layout->rows}; }

Status product(const ProductCall& call, const ProductShare& share, std::span<std::byte> scratch) {
  ACCORD_RETURN_IF_ERROR(check(call, share, scratch));
  const PackedMatrix& weights = *call.weights;
  float* const sums = reinterpret_cast<float*>(scratch.data());
  float* const gate = sums + kSums;
  const PanelSums panels(weights, *call.layout, call.x, reinterpret_cast<std::uint32_t*>(gate + kSums));
  if (!panels.is_valid())
    return {StatusCode::kInvalidArgument, "product: the rows were prepared for another instruction set"};
  const std::int64_t rows = share.last_row - share.first_row;
  const std::int64_t panels_at_once = weights.in_units > 1 && rows > 0 ? std::max<std::int64_t>(kSumRows / rows, 1) : 1;
  for (std::int64_t panel = share.first_panel; panel < share.last_panel; panel += panels_at_once) {
    const std::int64_t count = std::min(panels_at_once, share.last_panel - panel);
    for (std::int64_t row = share.first_row; row < share.last_row; row += kSumRows) {
      const std::int64_t block = std::min(kSumRows, share.last_row - row);
      panels.run(weights, panel, count, row, block, sums);
      if (call.gate != nullptr) panels.run(*call.gate, panel, count, row, block, gate);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t first = i * block * kAccumulatorStride;
        end_panel(call, panel + i, row, block, sums + first, gate + first);
      }
    }
  }
  return {};
}

}  // namespace accord::kernels
