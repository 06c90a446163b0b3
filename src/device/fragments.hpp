#pragma once
// Small matrices that the 32 lanes of a warp hold together, for products on tensor cores: PTX's fragments of
// mma.m16n8k16 and ldmatrix.
//
// A tile has 8 rows of 8 16-bit elements. Each lane holds two neighbors of one row in one word, the first in the
// lower half: [lane / 4][lane % 4 * 2], [lane / 4][lane % 4 * 2 + 1].

#include <cstdint>

namespace accord::device {

/// Lanes that the Block calls for tiles and fragments need. A kernel that uses them declares `static constexpr int
/// kLanes = kFragmentLanes`.
inline constexpr int kFragmentLanes = 32;

/// Four tiles. As a matrix [16][16]: upper left, lower left, upper right, lower right.
struct Tiles {
  std::uint32_t of[4];
};

/// A matrix [16][8] of which each lane holds neighbors of one column: the left and the right tile of its transpose,
/// [8][16].
struct TilePair {
  std::uint32_t of[2];
};

/// A matrix [16][8] of float32. Each lane holds [row][column], [row][column + 1], [row + 8][column] and [row +
/// 8][column + 1], with row = lane / 4 and column = lane % 4 * 2. Two adjacent ones, rounded to 16 bits and paired,
/// form Tiles.
struct Sums {
  float of[4];
};

}  // namespace accord::device
