#pragma once
// Assigns each intermediate result its place in one arena.

#include <cstddef>
#include <span>
#include <vector>

namespace accord::engine {

/// A piece of memory in use from step `first` to step `last`, both included.
struct Lifetime {
  std::size_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;  ///< one per lifetime, multiples of kArenaAlignment
  std::size_t bytes = 0;             ///< size of the arena
};

inline constexpr std::size_t kArenaAlignment = 64;

/// At most this many pieces share places. If there are more, the smallest ones get places of their own.
inline constexpr std::size_t kMaxSharing = 8192;

/// Gives pieces whose lifetimes overlap disjoint places. Greedy: the largest piece first, each into the tightest gap
/// that fits between the pieces already placed. Pure. Cost: quadratic in the number of pieces up to kMaxSharing
/// (about 0.1 s there), and n log n beyond. REQUIRES: all pieces together have fewer than 2^63 bytes.
MemoryPlan plan_memory(std::span<const Lifetime> lifetimes);

}  // namespace accord::engine
