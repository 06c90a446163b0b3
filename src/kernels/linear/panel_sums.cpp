// The grid is processed block by block, panel by panel and chunk by chunk. A chunk's weights are unpacked into a tile
// in the L1 cache, and all rows are multiplied by it. The tile is skipped if the weights already have the rows' form
// or if there are few rows.

#include "kernels/linear/panel_sums.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/elementwise/row_kernels.hpp"

namespace accord::kernels {

namespace {

// Up to this many rows, weights are unpacked on the fly, once per register block of rows.
constexpr std::int64_t kMaxPackedRows = 16;
// Prefetch distance in words. If little is done besides loading the weights, the hardware prefetcher suffices.
constexpr std::int64_t kPrefetchDistance = 2048;
constexpr std::int64_t kMaxRowsWithoutPrefetch = 4;

}  // namespace

TableValues table_values(const PackedFormat& format) {
  TableValues values;
  if (format.type != WeightType::kTable4) return values;
  values.numbers = format.table;
  std::array<std::uint16_t, 16> halves{};
  convert_between(DType::kFloat32, format.table.data(), DType::kBFloat16, halves.data(), 16);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    values.low[i] = static_cast<std::uint8_t>(halves[i] & 0xFF);
    values.high[i] = static_cast<std::uint8_t>(halves[i] >> 8);
    if (format.has_integers()) values.integers[i] = static_cast<std::uint8_t>(static_cast<int>(format.table[i]) + 128);
  }
  return values;
}

PanelSums::PanelSums(const PackedMatrix& weights, const RowsLayout& layout, const std::byte* x, std::uint32_t* tile)
    : layout_(layout),
      x_(x),
      tile_(tile),
      tile_kernel_(panel_kernels().tile[static_cast<int>(layout.form)][static_cast<int>(layout.format.type)]),
      packed_kernel_(panel_kernels().packed[static_cast<int>(layout.form)][static_cast<int>(layout.format.type)]),
      unpack_(panel_kernels().unpack[static_cast<int>(layout.form)][static_cast<int>(layout.format.type)]),
      padded_in_(padded_in(layout.format, layout.in_unit)),
      panels_per_unit_(panels_of(weights.out_unit)),
      panel_bytes_(static_cast<std::int64_t>(panel_bytes(layout.format, padded_in_, kPanelWidth))),
      full_(width_sizes(kPanelWidth)),
      last_(width_sizes(panel_width(weights.out_unit, panels_per_unit_ - 1))),
      table_(table_values(layout.format)) {}

PanelSums::Width PanelSums::width_sizes(std::int64_t width) const {
  const PackedFormat& format = layout_.format;
  const std::int64_t group = format.quantized() ? format.group : layout_.chunk;
  return {width, static_cast<std::int64_t>(super_scale_bytes(format, width)),
          static_cast<std::int64_t>(scale_bytes(format, width)),
          static_cast<std::int64_t>(input_bytes(format, group, width)),
          static_cast<std::int64_t>(input_bytes(format, layout_.chunk, width))};
}

void PanelSums::run(const PackedMatrix& weights, std::int64_t panel, std::int64_t count, std::int64_t row,
                    std::int64_t rows, float* sums) const {
  const std::int64_t panel_floats = rows * kAccumulatorStride;
  std::fill(sums, sums + count * panel_floats, 0.0F);
  for (std::int64_t unit = 0; unit < weights.in_units; ++unit) {
    TileCall call;
    call.codes = {layout_.format.zero(), &table_};
    call.scale_type = layout_.format.scale_type;
    call.has_minima = layout_.format.minimum == Minimum::kPerGroup;
    call.rows = rows;
    call.x_stride = layout_.chunk_words();
    call.x = layout_.words(x_, unit * layout_.chunks_per_unit) + row * call.x_stride;
    call.row_group_stride = layout_.chunk_groups();
    call.row_groups = layout_.groups(x_, unit * layout_.chunks_per_unit) + row * call.row_group_stride;
    for (std::int64_t i = 0; i < count; ++i) {
      call.accumulators = sums + i * panel_floats;
      add_block(weights, panel + i, unit, call);
    }
  }
}

// Adds the product of the rows with one panel of one block.
void PanelSums::add_block(const PackedMatrix& weights, std::int64_t panel, std::int64_t unit,
                          const TileCall& rows) const {
  const std::int64_t in_unit = panel % panels_per_unit_;
  const Width& width = in_unit + 1 == panels_per_unit_ ? last_ : full_;
  const bool quantized = layout_.format.quantized();
  const bool unpacks = unpack_ != nullptr && rows.rows > kMaxPackedRows;
  const TileKernel kernel = unpacks || unpack_ == nullptr ? tile_kernel_ : packed_kernel_;
  const std::byte* from = weights.data + panel / panels_per_unit_ * weights.out_unit_stride +
                          unit * weights.in_unit_stride + in_unit * panel_bytes_;
  TileCall call = rows;
  call.width = width.width;
  call.scale_stride = width.group;
  if (layout_.format.has_super_groups()) {
    call.super_scales = from;
    call.super_stride = width.super;
    call.super_shift = std::countr_zero(static_cast<unsigned>(kSuperGroup / layout_.format.group));
    from += layout_.format.super_groups_of(padded_in_) * width.super;
  }
  for (std::int64_t chunk = 0; chunk < layout_.chunks_per_unit; ++chunk, from += width.chunk) {
    const std::int64_t inputs = std::min(layout_.chunk, padded_in_ - chunk * layout_.chunk);
    call.groups = quantized ? inputs / layout_.format.group : 1;
    call.words = (quantized ? layout_.format.group : inputs) / inputs_per_word(layout_.form);
    call.scales = from;
    call.weights = reinterpret_cast<const std::uint32_t*>(from + width.scales);
    call.group_stride = width.group / 4;
    call.ahead = quantized || rows.rows > kMaxRowsWithoutPrefetch ? kPrefetchDistance : 0;
    if (unpacks) {
      unpack_(
          {call.weights, call.group_stride, call.groups, call.words, call.width, kPrefetchDistance, call.codes, tile_});
      call.weights = tile_;
      call.group_stride = call.words * call.width;
      call.ahead = 0;
    }
    kernel(call);
    call.x += layout_.rows * call.x_stride;
    call.row_groups += layout_.rows * call.row_group_stride;
    call.first_group += call.groups;
  }
}

}  // namespace accord::kernels
