#pragma once
// The sums of products of some rows with some panels: the part of product.hpp before its epilogue.

#include <cstddef>
#include <cstdint>

#include "kernels/linear/panel_kernels.hpp"
#include "kernels/linear/rows.hpp"

namespace accord::kernels {

constexpr std::int64_t kTileWords = 128 * kPanelWidth;

/// Prepared for weights of one format and size.
class PanelSums {
 public:
  /// `x`: rows prepared according to `layout`. `tile`: scratch of [kTileWords].
  PanelSums(const PackedMatrix& weights, const RowsLayout& layout, const std::byte* x, std::uint32_t* tile);

  /// True if the rows were prepared for the instructions in use.
  bool is_valid() const { return tile_kernel_ != nullptr; }

  /// Computes sums [count][rows][kAccumulatorStride] = rows [row, row + rows) times panels [panel, panel + count) of
  /// `weights`.
  void run(const PackedMatrix& weights, std::int64_t panel, std::int64_t count, std::int64_t row, std::int64_t rows,
           float* sums) const;

 private:
  // Quantities that depend on a panel's width. All but `width` are in bytes.
  struct Width {
    std::int64_t width, super, scales, group, chunk;
  };
  Width width_sizes(std::int64_t width) const;
  void add_block(const PackedMatrix& weights, std::int64_t panel, std::int64_t unit, const TileCall& rows) const;

  const RowsLayout& layout_;
  const std::byte* x_;
  std::uint32_t* tile_;
  TileKernel tile_kernel_, packed_kernel_;
  UnpackKernel unpack_;
  std::int64_t padded_in_, panels_per_unit_, panel_bytes_;
  Width full_, last_;
  TableValues table_;
};

}  // namespace accord::kernels
