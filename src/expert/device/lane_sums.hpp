#pragma once
// Prefix sums over the lanes of a warp.

#include "device/kernel.hpp"

namespace accord::expert {

/// Sum of `x` over this lane and the lanes below it. All lanes must call it.
template <typename T, typename Block>
ACCORD_ON_DEVICE T sum_of_lanes_up_to(Block& block, T x) {
  for (int distance = 1; distance < block.lanes(); distance *= 2) {
    const bool adds = block.lane() >= distance;
    const T lower = block.from_lane(x, adds ? block.lane() - distance : block.lane());
    if (adds) x += lower;
  }
  return x;
}

}  // namespace accord::expert
