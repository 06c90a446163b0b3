#pragma once
// The rows that are multiplied with packed weights, in the form that the inner loops take them: converted or quantized once
// per call, cut into the chunks of inputs in which weights are unpacked. Several matrices with equal `in` and format (query,
// key and value; gate and up) share one preparation.

#include <cstddef>
#include <cstdint>

#include "accord/buffer.hpp"
#include "accord/status.hpp"
#include "kernels/linear/format.hpp"
#include "kernels/linear/panel_kernels.hpp"

namespace accord::kernels {

/// As what rows are multiplied. Sums of products are fp32 always.
enum class Arithmetic : std::uint8_t {
  kFloat32,  ///< as fp32
  kBFloat16,  ///< rounded to bfloat16: exact for rows of bfloat16; twice as fast where the processor multiplies bfloat16. Where it
  ///< does not, rows for quantized weights are rounded to whole numbers of max |x| / 32767 of each row and group: an
  ///< error of at most max |x| / 65534 in each input, less than bfloat16 has in that largest one. A group with a NaN
  ///< or an infinity gives NaN there; below 1e-33 it counts as 0
  kInt8,  ///< quantized weights only: rounded to whole numbers of max |x| / 127 of each row and group: an error of at most
          ///< max |x| / 254 in each input. A group with a NaN or an infinity gives NaN; below 1e-33 it counts as 0
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

/// How prepared rows lie in memory; depends on the instruction set in use.
struct RowsLayout {
  Arithmetic arithmetic = Arithmetic::kFloat32;
  Form form = Form::kFloat32;
  PackedFormat format;
  std::int64_t rows = 0;
  std::int64_t in_unit = 0, in_units = 0, in_padding = 0;
  std::int64_t chunk = 0;  ///< inputs of a chunk; the last one of a block may have less
  std::int64_t chunks_per_unit = 0;

  /// Of the memory that prepared rows take.
  std::size_t bytes() const;
  /// Whether rows prepared for another matrix do for this one too.
  bool fits(const PackedMatrix& weights) const;

  std::int64_t chunk_words() const { return chunk / inputs_per_word(form); }
  std::int64_t chunk_groups() const { return format.quantized() ? chunk / format.group : 0; }
  /// Of chunk `index`, counted through all blocks: [rows][chunk_words()] and [rows][chunk_groups()].
  const std::uint32_t* words(const std::byte* memory, std::int64_t index) const;
  const RowGroup* groups(const std::byte* memory, std::int64_t index) const;
};

/// For `rows` rows times `weights`. kInvalidArgument if the format has no such arithmetic or a size is negative.
Result<RowsLayout> rows_layout(const PackedMatrix& weights, Arithmetic arithmetic, std::int64_t rows);

/// Prepares rows [first, last) of `x` [layout.rows, in] into `memory` of layout.bytes() bytes at a multiple of 64. Threads
/// may share the rows of one call. Cost: one pass over the rows.
void prepare_rows(const RowsLayout& layout, const ConstRows& x, std::int64_t first, std::int64_t last,
                  std::byte* memory);
/// The same for one row [in] of `dtype` at `x`, as row `row` of the prepared ones: for rows that are picked.
void prepare_row(const RowsLayout& layout, const void* x, DType dtype, std::int64_t row, std::byte* memory);

}  // namespace accord::kernels
