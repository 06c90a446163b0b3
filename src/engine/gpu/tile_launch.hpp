#pragma once
// Which attention can use tensor cores.

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "engine/gpu/kernels/attend_tiles.hpp"
#include "engine/gpu/kernels/cache_kernels.hpp"

namespace accord::engine::gpu {

/// Returns the smallest of `sizes`, ascending head sizes for which a kernel is compiled, that these heads fit into; 0
/// if no kernel takes such heads.
inline int tile_dim(std::int64_t head_dim, std::int64_t value_dim, std::initializer_list<int> sizes) {
  if (head_dim % kTileDim != 0 || value_dim % kTileDim != 0) return 0;
  for (const int size : sizes)
    if (std::max(head_dim, value_dim) <= size) return size;
  return 0;
}

/// Returns whether heads of kDType are whole Words in memory. `batch_stride`: in elements.
template <DType kDType>
bool is_in_words(const HeadRows& rows, std::int64_t batch_stride = 0) {
  constexpr int kEach = kElementsOfWords<kDType>;
  return rows.dtype == kDType && reinterpret_cast<std::uintptr_t>(rows.data) % sizeof(Words) == 0 &&
         rows.row_stride % kEach == 0 && rows.head_stride % kEach == 0 && batch_stride % kEach == 0;
}

/// Returns whether `queries` queries fill enough blocks of high tiles, two or more for each multiprocessor. With fewer
/// queries, more blocks of low tiles end earlier.
template <typename HighTiles>
bool fill_high_tiles(std::int64_t queries, int multiprocessors) {
  return queries >= std::int64_t{2} * multiprocessors * HighTiles::queries_of(HighTiles::kThreads);
}

}  // namespace accord::engine::gpu
