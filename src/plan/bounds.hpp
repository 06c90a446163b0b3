#pragma once
// Which elements a chunk means: turns a plan's chunk numbers into ranges of the caller's buffers, for any count.

#include <cstddef>
#include <vector>

#include "plan/plan.hpp"

namespace accord::plan {

/// `count` elements from `first`, of a caller's buffer.
struct Range {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// Ranges of the chunks of the caller's buffers.
struct Bounds {
  std::vector<Range> input;
  std::vector<Range> output;
  std::size_t longest = 0;  ///< elements of the longest chunk: what the slices have to cover
};

/// How a collective of `count` elements maps to a plan's chunks. `count` is that of a buffer, or of one part of it where the
/// collective divides it among the ranks (collective.hpp); barrier: 0. Both are cut into equal chunks at multiples of a cache
/// line where they are long enough, so that slices stay aligned.
Bounds bounds_of(const Plan& plan, std::size_t count, std::size_t element_bytes);

}  // namespace accord::plan
