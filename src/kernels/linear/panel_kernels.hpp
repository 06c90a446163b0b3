#pragma once
// The inner loops of products with packed weights, for the instruction set in use. Rows come prepared (rows.hpp), weights as
// tiles: a range of inputs of one panel in the form that the loops want.

#include <cstddef>
#include <cstdint>

#include "kernels/linear/format.hpp"

namespace accord::kernels {

/// What one 32-bit word of prepared rows, and of a tile, holds; a tile has [words][width] of them.
enum class Form : std::uint8_t {
  kFloat32,   ///< one float
  kBFloat16,  ///< two bfloat16 of consecutive inputs; sums are fp32
  kInt8,      ///< four integers: of rows signed, of weights codes; sums are exact
  kInt16,     ///< the same with two integers of 16 bits
};
constexpr int kForms = 4;
constexpr int inputs_per_word(Form form) { return form == Form::kFloat32 ? 1 : form == Form::kInt8 ? 4 : 2; }
constexpr bool has_integers(Form form) { return form == Form::kInt8 || form == Form::kInt16; }

/// What belongs to a row and a group of its inputs, where weights are quantized.
struct RowGroup {
  float scale = 1.0F;         ///< forms of integers: what one step of the row's integers is worth
  float sum = 0.0F;           ///< of the inputs as the product sees them
  std::int32_t integers = 0;  ///< forms of integers: sum of the row's integers
};

constexpr std::int64_t kAccumulatorStride = kPanelWidth;

/// accumulators[row][output] += rows * tile, input by input in ascending order, whatever the number of rows.
struct TileCall {
  const std::uint32_t* weights = nullptr;  ///< a tile, or words as they are packed
  std::int64_t ahead = 0;                  ///< words by which weights are fetched before they are used
  std::int64_t width = 0;                  ///< words from one word of an output to its next
  std::int64_t words = 0;                  ///< of a row; of each group, if weights are quantized
  const std::uint32_t* x = nullptr;        ///< [rows][words]
  std::int64_t x_stride = 0;               ///< words from row to row
  std::int64_t rows = 0;
  float* accumulators = nullptr;  ///< [rows][kAccumulatorStride]
  // Quantized weights: sum over groups of scale * (sum of x * (code - zero)) + minimum * (sum of x).
  std::int64_t groups = 0;
  std::int64_t group_stride = 0;      ///< words from group to group of the tile
  const std::byte* scales = nullptr;  ///< [width] of the first group, minima behind them
  std::int64_t scale_stride = 0;      ///< bytes from group to group
  DType scale_type = DType::kFloat16;
  bool has_minima = false;
  const RowGroup* row_groups = nullptr;  ///< [rows][groups]
  std::int64_t row_group_stride = 0;     ///< from row to row
  int zero = 0;                          ///< the code of zero
};
using TileKernel = void (*)(const TileCall& call);

/// Turns packed weights into a tile.
struct UnpackCall {
  const std::uint32_t* from = nullptr;  ///< words of a panel (behind the scales of the first group)
  std::int64_t from_stride = 0;         ///< words from group to group
  std::int64_t groups = 1;
  std::int64_t words = 0;  ///< of the tile, of each group
  std::int64_t width = 0;
  std::int64_t ahead = 0;  ///< as of TileCall
  int zero = 0;
  std::uint32_t* to = nullptr;
};
using UnpackKernel = void (*)(const UnpackCall& call);

/// nullptr where there is none.
struct PanelKernels {
  bool has_bfloat16 = false;          ///< products of bfloat16 in one instruction; else Form::kBFloat16 has no kernels
  TileKernel tile[kForms][5] = {};    ///< weights are a tile; by Form and WeightType
  TileKernel packed[kForms][5] = {};  ///< weights as they are packed, taken apart on the way; by Form and WeightType
  UnpackKernel unpack[kForms][5] = {};  ///< by Form and WeightType; none where packed weights are a tile
};
const PanelKernels& panel_kernels();

/// Whether instructions that a set of Highway's may or may not have beside it (AVX512_BF16, VNNI) are used where the machine
/// has them; for tests and measurements. Products prepared before must be prepared anew.
enum class DotInstructions : std::uint8_t { kIfPresent, kNever };
void use_dot_instructions(DotInstructions use);

}  // namespace accord::kernels
