#pragma once
// Products of rows in tiles with a weight for each tile.

#include "engine/device/device_run.hpp"
#include "engine/device/grouped_product_kernel.hpp"

namespace accord::engine {

/// The most rows of a tile that takes more than kFewRows.
inline constexpr std::int64_t kManyRows = ExpertsManyRows<DType::kFloat32, false, WeightsAre::kAsRows>::kRows;

/// The kernel for tiles of up to `tile_rows` rows: 1, 2, 4, kFewRows or kManyRows. With a gate as of FewRowsCall; without a bias. An output's bits
/// depend on its row, its weight and tile_rows alone.
Status launch_tiles(const DeviceRun& run, const ExpertProduct& product, std::int64_t tile_rows);

}  // namespace accord::engine
