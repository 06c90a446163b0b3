#pragma once
// Small matrices that the 32 lanes of a warp hold together, for products on tensor cores: PTX's fragments of mma.m16n8k16 and of ldmatrix.
//
// A tile has 8 rows of 8 elements of 16 bits. Each lane has two neighbours of one row, as one word whose lower half comes first:
// [lane / 4][lane % 4 * 2], [lane / 4][lane % 4 * 2 + 1].

#include <cstdint>

namespace accord::device {

/// What Block's calls that name tiles or fragments need: a kernel that has them says `static constexpr int kLanes = kFragmentLanes`.
inline constexpr int kFragmentLanes = 32;

/// Four tiles; as a matrix [16][16] the upper left one, the lower left, the upper right, the lower right.
struct Tiles {
  std::uint32_t of[4];
};

/// A matrix [16][8] of which each lane has two neighbours of one column: the left and the right tile of the transposed matrix, [8][16].
struct TilePair {
  std::uint32_t of[2];
};

/// A matrix [16][8] of float32. Each lane has [row][column], [row][column + 1], [row + 8][column], [row + 8][column + 1] with row = lane / 4 and
/// column = lane % 4 * 2. Rounded to 16 bits, by pairs, two that lie side by side are Tiles.
struct Sums {
  float of[4];
};

}  // namespace accord::device
