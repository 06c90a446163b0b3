#pragma once
// Kernels that move elements unchanged: gathers and strided copies.

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/view.hpp"

namespace accord::kernels {

/// An id outside the table.
struct BadId {
  std::int64_t position = 0;  ///< index of the id, in row-major order
  std::int64_t id = 0;
};

/// Selects rows of `table` by `count` ids (int64 or int32, contiguous).
struct GatherCall {
  const void* ids = nullptr;
  DType id_dtype = DType::kInt64;
  std::int64_t count = 0;
  const void* table = nullptr;  ///< [table_rows, row_bytes]; rows are `table_row_stride` bytes apart
  std::int64_t table_rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t table_row_stride = 0;
  void* output = nullptr;  ///< [count, row_bytes]; rows are `output_row_stride` bytes apart
  std::int64_t output_row_stride = 0;
  std::int64_t first_row = 0;  ///< if the table is part of a larger one: its first row there
  /// rows of the larger table; ids of rows outside this part give zeros
  std::optional<std::int64_t> total_rows = {};
};

/// Returns ids[i] of an int64 or int32 array.
std::int64_t id_at(const void* ids, DType dtype, std::int64_t i);

/// Returns the first id that is negative or not below `rows`, if there is one.
std::optional<BadId> find_bad_id(const void* ids, DType dtype, std::int64_t count, std::int64_t rows);

/// output[i] = table[ids[i] - first_row]. Checks all ids before it writes: if an id is below 0 or not below
/// total_rows (table_rows if unset), returns the first such id and leaves the output untouched. REQUIRES: id_dtype
/// is int64 or int32. Cost: one read and one write of the rows.
std::optional<BadId> gather_rows(const GatherCall& call);

/// y = x element by element, with x broadcast to y's sizes. Both have the same dtype, which may be any. Permuting,
/// slicing, expanding and making contiguous are all views of x. Fails with kInvalidArgument if sizes or dtypes do not
/// fit. x and y must not overlap. Cost: one pass, blocked if the contiguous dimensions of x and y differ.
Status copy_strided(const ConstView& x, const View& y);

/// y[..., i, ...] = x[..., index[..., i, ...], ...] along `dim`, like torch.gather. `index` is int64 or int32 with
/// y's sizes and is checked before anything is written. Fails with kInvalidArgument, which names the first bad index.
Status gather_elements(const ConstView& x, int dim, const ConstView& index, const View& y);

}  // namespace accord::kernels
