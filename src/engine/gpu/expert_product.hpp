#pragma once
// Products of tiles of rows, with one weight for each tile.

#include "engine/gpu/kernels/grouped_product_kernel.hpp"
#include "engine/gpu/run.hpp"

namespace accord::engine {

/// The most rows of a tile that has more than kFewRows.
inline constexpr std::int64_t kManyRows = ExpertsManyRows<DType::kFloat32, false, WeightKind::kSameAsRows>::kRows;

/// Launches the kernel for tiles of up to `tile_rows` rows: 1, 2, 4, kFewRows or kManyRows. Supports a gate as
/// ProductCall does, but no bias. The bits of an output depend only on its row, its weight and tile_rows.
Status launch_tiles(const DeviceRun& run, const ExpertProduct& product, std::int64_t tile_rows);

}  // namespace accord::engine
