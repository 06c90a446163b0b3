#pragma once
// Which elements a chunk means: turns a plan's chunk numbers into ranges of the caller's buffers, for any count.

#include <cstddef>
#include <span>
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

/// What one rank has where the parts of the ranks differ. A span is empty where this rank lacks that buffer or it is not divided.
struct Extent {
  std::size_t input_count = 0;  ///< of all of the buffer
  std::size_t output_count = 0;
  std::span<const std::size_t> input_parts;  ///< by rank, in order, without gaps
  std::span<const std::size_t> output_parts;
  std::size_t longest_part = 0;  ///< of all ranks, equal on all of them
};

/// The same for parts of different counts; chunks of a buffer that this rank lacks mean nothing. A plan needs no other proof for
/// them: what a step moves or adds up belongs to one part.
Bounds bounds_of(const Plan& plan, const Extent& extent, std::size_t element_bytes);

}  // namespace accord::plan
