#pragma once
// Kernels that move elements without changing them: gathers, strided copies.

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/view.hpp"

namespace accord::kernels {

/// An id that is in no row of the table.
struct BadId {
  std::int64_t position = 0;  ///< which of the ids, in row-major order
  std::int64_t id = 0;
};

/// `count` ids (int64 or int32, contiguous) pick rows of `table`.
struct GatherCall {
  const void* ids = nullptr;
  DType id_dtype = DType::kInt64;
  std::int64_t count = 0;
  const void* table = nullptr;  ///< [table_rows, row_bytes], rows `table_row_stride` bytes apart
  std::int64_t table_rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t table_row_stride = 0;
  void* output = nullptr;  ///< [count, row_bytes], rows `output_row_stride` bytes apart
  std::int64_t output_row_stride = 0;
  std::int64_t first_row = 0;                    ///< of a table that is a part of a larger one: its first row there
  std::optional<std::int64_t> rows_in_all = {};  ///< of the larger one; ids of its other rows give zeros
};

/// Id number `i` of `ids`, of int64 or int32.
std::int64_t id_at(const void* ids, DType dtype, std::int64_t i);

/// The first id below 0 or not below `rows`, if there is one.
std::optional<BadId> find_bad_id(const void* ids, DType dtype, std::int64_t count, std::int64_t rows);

/// output[i] = table[ids[i] - first_row]. All ids are checked before anything is written: the first one below 0 or not below
/// rows_in_all (table_rows) is returned and the output is untouched. REQUIRES: id_dtype is int64 or int32. Cost: one read and one write of the rows.
std::optional<BadId> gather_rows(const GatherCall& call);

/// y = x element by element (x is broadcast to y's sizes); one dtype, any. Permutes, slices, expands, makes contiguous: all
/// are views of x. kInvalidArgument if sizes or dtypes do not fit. x and y do not overlap. Cost: one pass; blocked when the
/// contiguous dimensions of x and y differ.
Status copy_strided(const ConstView& x, const View& y);

/// y[..., i, ...] = x[..., index[..., i, ...], ...] along `dim`, as torch.gather; index int64 or int32 of y's sizes, checked
/// before anything is written. kInvalidArgument names the first bad index.
Status gather_elements(const ConstView& x, int dim, const ConstView& index, const View& y);

}  // namespace accord::kernels
