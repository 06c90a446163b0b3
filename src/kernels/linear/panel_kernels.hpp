#pragma once
// The inner loops of products with packed weights, for the instruction set in use. Rows arrive prepared (rows.hpp).
// Weights arrive as tiles: a range of inputs of one panel in the form that the loops read.

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/linear/format.hpp"

namespace accord::kernels {

/// The contents of one 32-bit word of prepared rows and of a tile. A tile has [words][width] words.
enum class Form : std::uint8_t {
  kFloat32,   ///< one float
  kBFloat16,  ///< two bfloat16 of consecutive inputs, with fp32 sums
  kInt8,      ///< four integers: signed in rows, codes in weights; sums are exact
  kInt16,     ///< like kInt8, with two 16-bit integers
};
constexpr int kForms = 4;
constexpr int inputs_per_word(Form form) { return form == Form::kFloat32 ? 1 : form == Form::kInt8 ? 4 : 2; }
constexpr bool has_integers(Form form) { return form == Form::kInt8 || form == Form::kInt16; }

/// Data of a row and a group of its inputs, for quantized weights.
struct RowGroup {
  float scale = 1.0F;         ///< integer forms: the value of one step of the row's integers
  float sum = 0.0F;           ///< sum of the inputs as the product sees them
  std::int32_t integers = 0;  ///< integer forms: sum of the row's integers
};

constexpr std::int64_t kAccumulatorStride = kPanelWidth;

/// The numbers of a table, as kernels look them up.
struct TableValues {
  std::array<float, 16> numbers{};
  alignas(16) std::array<std::uint8_t, 16> integers{};  ///< plus 128, if all numbers are integers of 8 bits
  /// The lower and upper bytes of the numbers rounded to bfloat16.
  alignas(16) std::array<std::uint8_t, 16> low{}, high{};
};
TableValues table_values(const PackedFormat& format);

/// The numbers that codes of weights stand for.
struct CodeValues {
  int zero = 0;                        ///< the code of zero
  const TableValues* table = nullptr;  ///< for kTable4
};

/// accumulators[row][output] += rows * tile, input by input in ascending order, for any number of rows.
struct TileCall {
  const std::uint32_t* weights = nullptr;  ///< a tile, or words in packed form
  std::int64_t ahead = 0;                  ///< prefetch distance in words
  std::int64_t width = 0;                  ///< words between consecutive words of an output
  std::int64_t words = 0;                  ///< words per row; per group if weights are quantized
  const std::uint32_t* x = nullptr;        ///< [rows][words]
  std::int64_t x_stride = 0;               ///< words from row to row
  std::int64_t rows = 0;
  float* accumulators = nullptr;  ///< [rows][kAccumulatorStride]
  // Quantized weights: the sum over groups of scale * (sum of x * (code - zero)) + minimum * (sum of x).
  std::int64_t groups = 0;
  std::int64_t group_stride = 0;      ///< words from group to group in the tile
  const std::byte* scales = nullptr;  ///< [width] of the first group, followed by its minima
  std::int64_t scale_stride = 0;      ///< bytes from group to group
  // With super-groups of 2^super_shift groups: group g belongs to super-group (first_group + g) >> super_shift.
  const std::byte* super_scales = nullptr;  ///< [width] of super-group 0 for scales, followed by those for minima
  std::int64_t super_stride = 0;            ///< bytes from super-group to super-group
  std::int64_t first_group = 0;
  int super_shift = 0;
  DType scale_type = DType::kFloat16;
  bool has_minima = false;
  const RowGroup* row_groups = nullptr;  ///< [rows][groups]
  std::int64_t row_group_stride = 0;     ///< from row to row, in groups
  CodeValues codes;
};
using TileKernel = void (*)(const TileCall& call);

/// Converts packed weights to a tile.
struct UnpackCall {
  const std::uint32_t* from = nullptr;  ///< words of a panel, after the scales of the first group
  std::int64_t from_stride = 0;         ///< words from group to group
  std::int64_t groups = 1;
  std::int64_t words = 0;  ///< words per group of the tile
  std::int64_t width = 0;
  std::int64_t ahead = 0;  ///< as in TileCall
  CodeValues codes;
  std::uint32_t* to = nullptr;
};
using UnpackKernel = void (*)(const UnpackCall& call);

/// The kernels of an instruction set; nullptr where there is none.
struct PanelKernels {
  /// Has bfloat16 product instructions; otherwise Form::kBFloat16 has kernels for kTable4 only.
  bool has_bfloat16 = false;
  TileKernel tile[kForms][kPanelTypes] = {};      ///< for weights in a tile; by Form and WeightType
  TileKernel packed[kForms][kPanelTypes] = {};    ///< for packed weights, unpacked on the fly; by Form and WeightType
  UnpackKernel unpack[kForms][kPanelTypes] = {};  ///< by Form and WeightType; null if packed weights already are a tile
};
const PanelKernels& panel_kernels();

/// Controls whether to use instructions that are optional within a Highway target (AVX512_BF16, VNNI) if the machine
/// has them. For tests and measurements. Rows prepared before a change must be prepared again.
enum class DotInstructions : std::uint8_t { kIfPresent, kNever };
void use_dot_instructions(DotInstructions use);

}  // namespace accord::kernels
