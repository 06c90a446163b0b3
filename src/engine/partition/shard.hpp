#pragma once
// How one tensor is divided among the ranks of one group.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "accord/engine.hpp"
#include "engine/graph/graph.hpp"

namespace accord::engine {

/// Dimension `dim` is cut into `units` pieces of `unit` elements (the last one may be shorter), which the ranks of `group`
/// share as units_of_rank says.
struct Shard {
  std::string group;
  int dim = 0;
  std::int64_t unit = 1;
  std::int64_t units = 1;
  std::int64_t together = 1;  ///< as of Sharding, and
  bool copies = false;
  bool operator==(const Shard&) const = default;

  /// The same pieces seen in another dimension.
  Shard in_dim(int other) const {
    Shard shard = *this;
    shard.dim = other;
    return shard;
  }
};

/// True if both cut their dimensions into equally many pieces that stay together, for the same group: what one rank holds of one
/// belongs to what it holds of the other.
inline bool line_up(const Shard& a, const Shard& b) {
  return a.group == b.group && a.units / a.together == b.units / b.together;
}
/// True if a rank holds the same elements of both dimensions.
inline bool same_units(const Shard& a, const Shard& b) { return a.in_dim(b.dim) == b; }

/// "dimension 0 in 12 units of 32 over group "tp"".
std::string shard_text(const Shard& shard);

/// Elements [first, first + count) of a dimension.
struct Extent {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const Extent&) const = default;
};

/// The part of a dimension of `size` elements that `place` holds.
Extent local_extent(const Shard& shard, std::int64_t size, const GroupPlace& place);

}  // namespace accord::engine
