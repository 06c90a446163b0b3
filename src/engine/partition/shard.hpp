#pragma once
// How one tensor is divided among the ranks of one group.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"

namespace accord::engine {

/// Dimension `dim` is divided into `units` pieces of `unit` elements (the last one may be shorter). units_of_rank()
/// says which pieces each rank of `group` holds.
struct Shard {
  std::string group;
  int dim = 0;
  std::int64_t unit = 1;
  std::int64_t units = 1;
  std::int64_t together = 1;  ///< as in Sharding, like `copies`
  bool copies = false;
  bool operator==(const Shard&) const = default;

  /// Returns the same pieces in another dimension.
  Shard in_dim(int other) const {
    Shard shard = *this;
    shard.dim = other;
    return shard;
  }
};

/// Returns true if both dimensions are divided into the same number of pieces that stay together, over the same group:
/// a rank's elements of one belong to its elements of the other.
inline bool line_up(const Shard& a, const Shard& b) {
  return a.group == b.group && a.units / a.together == b.units / b.together;
}
/// Returns true if a rank holds the same elements of both dimensions.
inline bool same_units(const Shard& a, const Shard& b) { return a.in_dim(b.dim) == b; }

/// Returns text such as "dimension 0 cut in 12 units of 32 over group "tp"".
std::string shard_text(const Shard& shard);

/// Elements [first, first + count) of a dimension.
struct Extent {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const Extent&) const = default;
};

/// Returns the part of a dimension of `size` elements that `place` holds.
Extent local_extent(const Shard& shard, std::int64_t size, const GroupPlace& place);

}  // namespace accord::engine
