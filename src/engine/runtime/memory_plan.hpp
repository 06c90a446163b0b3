#pragma once
// Where in one arena each intermediate result lies.

#include <cstddef>
#include <span>
#include <vector>

namespace accord::engine {

/// A piece of memory that is in use from step `first` to step `last`, both included.
struct Lifetime {
  std::size_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;  ///< one for each lifetime, multiples of kArenaAlignment
  std::size_t bytes = 0;             ///< of the arena
};

inline constexpr std::size_t kArenaAlignment = 64;

/// As many pieces share places; with more, the smallest of them get places of their own.
inline constexpr std::size_t kMostSharing = 8192;

/// Gives pieces whose lifetimes overlap disjoint places. Greedy: the largest first, each into the tightest gap that fits
/// between those already placed. Pure; cost quadratic in the number of pieces up to kMostSharing (there about 0.1 s), and
/// n log n beyond it. REQUIRES: all pieces together have less than 2^63 bytes.
MemoryPlan plan_memory(std::span<const Lifetime> lifetimes);

}  // namespace accord::engine
