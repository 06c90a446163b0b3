#pragma once
// The rows that are multiplied by packed weights, in the form that the inner loops read. They are converted or
// quantized once per call and split into the chunks of inputs in which weights are unpacked. Several matrices with
// equal `in` and format (query, key and value; gate and up) share one preparation.

#include <cstddef>
#include <cstdint>

#include "accord/buffer.hpp"
#include "accord/status.hpp"
#include "kernels/linear/format.hpp"
#include "kernels/linear/panel_kernels.hpp"

namespace accord::kernels {

/// The precision in which rows are multiplied. Sums of products are always fp32.
enum class Arithmetic : std::uint8_t {
  kFloat32,  ///< fp32
  /// Rounded to bfloat16: exact for rows of bfloat16, and twice as fast on processors that multiply bfloat16. Numbers
  /// of a table (kTable4) are rounded, too. On other processors, rows for weights of integers are rounded to integer
  /// multiples of max |x| / 32767 of each row and group. The error is at most max |x| / 65534 per input, less than
  /// bfloat16 has for the largest one. There a group with a NaN or an infinity gives NaN, and a group whose max |x| is
  /// at most 1e-33 counts as 0.
  kBFloat16,
  /// For weights of integers only (PackedFormat::has_integers): rounded to integer multiples of max |x| / 127 of each
  /// row and group. The error is at most max |x| / 254 per input. A group with a NaN or an infinity gives NaN, and a
  /// group whose max |x| is at most 1e-33 counts as 0.
  kInt8,
};

/// Rows in memory, `stride` elements apart, of kFloat32, kBFloat16 or kFloat16.
struct ConstRows {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t stride = 0;
};
struct Rows {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t stride = 0;
};

/// The memory layout of prepared rows. It depends on the instruction set in use.
struct RowsLayout {
  Arithmetic arithmetic = Arithmetic::kFloat32;
  Form form = Form::kFloat32;
  PackedFormat format;
  std::int64_t rows = 0;
  std::int64_t in_unit = 0, in_units = 0, in_padding = 0;
  std::int64_t chunk = 0;  ///< inputs per chunk; the last one of a block may have fewer
  std::int64_t chunks_per_unit = 0;

  /// Bytes of memory for the prepared rows.
  std::size_t bytes() const;
  /// True if rows prepared for another matrix also fit this one.
  bool fits(const PackedMatrix& weights) const;

  std::int64_t chunk_words() const { return chunk / inputs_per_word(form); }
  std::int64_t chunk_groups() const { return format.quantized() ? chunk / format.group : 0; }
  /// The data of chunk `index`, counted over all blocks: [rows][chunk_words()] and [rows][chunk_groups()].
  const std::uint32_t* words(const std::byte* memory, std::int64_t index) const;
  const RowGroup* groups(const std::byte* memory, std::int64_t index) const;
};

/// Returns the layout of `rows` rows to be multiplied by `weights`. Fails with kInvalidArgument if the format does
/// not support the arithmetic, or if a size is not positive (`rows` may be 0).
Result<RowsLayout> rows_layout(const PackedMatrix& weights, Arithmetic arithmetic, std::int64_t rows);

/// Prepares rows [first, last) of `x` [layout.rows, in] in `memory`, which has layout.bytes() bytes and is aligned to
/// 64 bytes. Threads may divide the rows of one call. Cost: one pass over the rows.
void prepare_rows(const RowsLayout& layout, const ConstRows& x, std::int64_t first, std::int64_t last,
                  std::byte* memory);
/// Prepares a single row [in] of `dtype` at `x` as prepared row `row`, for rows that are selected one by one.
void prepare_row(const RowsLayout& layout, const void* x, DType dtype, std::int64_t row, std::byte* memory);

}  // namespace accord::kernels
