// Gathers check all ids before they write, so a bad id leaves the output unchanged. They then copy row by row.
// Strided copies walk the rows that x and y have in common (row_loop.hpp). If x is contiguous along a dimension other
// than y's rows, that dimension and the rows are walked in square tiles, so that each cache line of x is fully used
// while it is cached.

#include "kernels/index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/elementwise/row_kernels.hpp"

namespace accord::kernels {

std::int64_t id_at(const void* ids, DType dtype, std::int64_t i) {
  return dtype == DType::kInt64 ? static_cast<const std::int64_t*>(ids)[i] : static_cast<const std::int32_t*>(ids)[i];
}

std::optional<BadId> find_bad_id(const void* ids, DType dtype, std::int64_t count, std::int64_t rows) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t id = id_at(ids, dtype, i);
    if (id < 0 || id >= rows) return BadId{i, id};
  }
  return std::nullopt;
}

namespace {

template <typename Word>
void copy_tile(const Word* x, std::int64_t x_across, Word* y, std::int64_t y_across, std::int64_t x_along,
               std::int64_t across, std::int64_t along) {
  for (std::int64_t i = 0; i < across; ++i) {
    for (std::int64_t k = 0; k < along; ++k) y[i * y_across + k] = x[i * x_across + k * x_along];
  }
}

// x is contiguous along dimension `across` of the loop (operand 0 is x, operand 1 is y); y is contiguous along the
// last.
template <typename Word>
void copy_in_tiles(const RowLoop<2>& full, int across, const void* from, void* to) {
  constexpr std::int64_t kTile = 32;
  RowLoop<2> loop = full;  // `across` is removed here: the tiles step along it
  loop.sizes[across] = 1;
  const std::int64_t x_across = full.strides[0][across], y_across = full.strides[1][across];
  const std::int64_t x_along = full.row_stride(0);
  const std::int64_t rows = full.sizes[across], length = full.row_size();
  loop.for_each_row([&](const std::array<std::int64_t, 2>& offsets) {
    const Word* const x = static_cast<const Word*>(from) + offsets[0];
    Word* const y = static_cast<Word*>(to) + offsets[1];
    for (std::int64_t i = 0; i < rows; i += kTile) {
      for (std::int64_t k = 0; k < length; k += kTile) {
        copy_tile(x + i * x_across + k * x_along, x_across, y + i * y_across + k, y_across, x_along,
                  std::min(kTile, rows - i), std::min(kTile, length - k));
      }
    }
    return true;
  });
}

// Returns the dimension for which tiling pays: the one along which x is contiguous, if that is not the rows'
// dimension. Returns -1 if there is none.
int tile_dimension(const RowLoop<2>& loop) {
  if (loop.row_stride(0) == 0 || loop.row_stride(0) == 1 || loop.row_stride(1) != 1) return -1;
  for (int i = 0; i < loop.dims - 1; ++i) {
    if (loop.strides[0][i] == 1) return i;
  }
  return -1;
}

std::span<const std::int64_t> sizes_of(const View& y) {
  return {y.layout.sizes.data(), static_cast<std::size_t>(y.layout.dims)};
}

template <typename Word>
void gather_along(const ConstView& x, std::int64_t stride, const ConstView& index, const View& y,
                  const RowLoop<3>& loop) {
  loop.for_each_row([&](const std::array<std::int64_t, 3>& offsets) {
    for (std::int64_t i = 0; i < loop.row_size(); ++i) {
      const std::int64_t chosen = id_at(index.data, index.dtype, offsets[0] + i * loop.row_stride(0));
      static_cast<Word*>(y.data)[offsets[2] + i * loop.row_stride(2)] =
          static_cast<const Word*>(x.data)[offsets[1] + i * loop.row_stride(1) + chosen * stride];
    }
    return true;
  });
}

}  // namespace

std::optional<BadId> gather_rows(const GatherCall& call) {
  const std::int64_t rows = call.total_rows.value_or(call.table_rows);
  if (const std::optional<BadId> bad = find_bad_id(call.ids, call.id_dtype, call.count, rows)) return bad;
  const std::byte* const table = static_cast<const std::byte*>(call.table);
  for (std::int64_t i = 0; i < call.count; ++i) {
    const std::int64_t row = id_at(call.ids, call.id_dtype, i) - call.first_row;
    std::byte* const to = static_cast<std::byte*>(call.output) + i * call.output_row_stride;
    if (row >= 0 && row < call.table_rows) {
      std::memcpy(to, table + row * call.table_row_stride, static_cast<std::size_t>(call.row_bytes));
    } else {
      std::memset(to, 0, static_cast<std::size_t>(call.row_bytes));
    }
  }
  return std::nullopt;
}

Status copy_strided(const ConstView& x, const View& y) {
  if (x.dtype != y.dtype) {
    return {StatusCode::kInvalidArgument, fmt::format("copy from {} to {}: the dtypes differ",
                                                      accord::to_string(x.dtype), accord::to_string(y.dtype))};
  }
  Result<Layout> layout = broadcast_layout(x.layout, sizes_of(y));
  if (!layout.ok()) return layout.status().with_context("copy");
  const ConstView broadcast{x.data, x.dtype, *layout};
  const RowLoop<2> loop({&broadcast.layout, &y.layout});
  const int across = tile_dimension(loop);
  const std::size_t element = size_of(x.dtype);
  if (across < 0) {
    run_rows(copy_row_kernel(element), std::span(&broadcast, 1), y);
    return {};
  }
  switch (element) {
    case 1: copy_in_tiles<std::uint8_t>(loop, across, x.data, y.data); break;
    case 2: copy_in_tiles<std::uint16_t>(loop, across, x.data, y.data); break;
    case 4: copy_in_tiles<std::uint32_t>(loop, across, x.data, y.data); break;
    default: copy_in_tiles<std::uint64_t>(loop, across, x.data, y.data); break;
  }
  return {};
}

Status gather_elements(const ConstView& x, int dim, const ConstView& index, const View& y) {
  bool fits = x.dtype == y.dtype && (index.dtype == DType::kInt64 || index.dtype == DType::kInt32) &&
              x.layout.dims == y.layout.dims && index.layout.dims == y.layout.dims && dim >= 0 && dim < y.layout.dims;
  for (int i = 0; fits && i < y.layout.dims; ++i) {
    fits = index.layout.sizes[i] == y.layout.sizes[i] && (i == dim || y.layout.sizes[i] <= x.layout.sizes[i]);
  }
  if (!fits) {
    return {
        StatusCode::kInvalidArgument,
        fmt::format(
            "gather along dimension {}: x and the output must have the same dtype; the index must be int64 or int32 "
            "and have the output's sizes, which must not exceed x's sizes in other dimensions",
            dim)};
  }
  Layout gathered = y.layout;  // x's strides over the output's sizes, with stride 0 along `dim`
  gathered.strides = x.layout.strides;
  gathered.strides[dim] = 0;
  const RowLoop<3> loop({&index.layout, &gathered, &y.layout});
  const std::int64_t limit = x.layout.sizes[dim];
  std::int64_t bad = 0;
  const bool good = loop.for_each_row([&](const std::array<std::int64_t, 3>& offsets) {
    for (std::int64_t i = 0; i < loop.row_size(); ++i) {
      bad = id_at(index.data, index.dtype, offsets[0] + i * loop.row_stride(0));
      if (bad < 0 || bad >= limit) return false;
    }
    return true;
  });
  if (!good) {
    return {StatusCode::kInvalidArgument,
            fmt::format("gather: index {} is out of range for dimension {} of size {}", bad, dim, limit)};
  }
  const std::int64_t stride = x.layout.strides[dim];
  switch (size_of(x.dtype)) {
    case 1: gather_along<std::uint8_t>(x, stride, index, y, loop); break;
    case 2: gather_along<std::uint16_t>(x, stride, index, y, loop); break;
    case 4: gather_along<std::uint32_t>(x, stride, index, y, loop); break;
    default: gather_along<std::uint64_t>(x, stride, index, y, loop); break;
  }
  return {};
}

}  // namespace accord::kernels
