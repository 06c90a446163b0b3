#pragma once
// Maps a plan's chunk numbers to ranges of elements in the caller's buffers, for any count.

#include <cstddef>
#include <span>
#include <vector>

#include "plan/plan.hpp"

namespace accord::plan {

/// `count` elements of a caller's buffer, starting at `first`.
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

/// Maps a collective of `count` elements to a plan's chunks. `count` is the size of a buffer, or of one part of it if
/// the collective divides it among the ranks (collective.hpp); 0 for a barrier. Either is cut into equal chunks at
/// multiples of a cache line if it is long enough, so that slices stay aligned.
Bounds bounds_of(const Plan& plan, std::size_t count, std::size_t element_bytes);

/// One rank's buffers when the ranks' parts differ. A span is empty if this rank lacks that buffer or it is not
/// divided.
struct Extent {
  std::size_t input_count = 0;  ///< of the whole buffer
  std::size_t output_count = 0;
  std::span<const std::size_t> input_parts;  ///< by rank, in order, without gaps
  std::span<const std::size_t> output_parts;
  std::size_t longest_part = 0;  ///< maximum over all ranks, equal on all of them
};

/// The same for parts of different counts; the chunks of a buffer that this rank lacks are meaningless. A plan needs
/// no further proof for them, since everything that a step moves or adds belongs to one part.
Bounds bounds_of(const Plan& plan, const Extent& extent, std::size_t element_bytes);

}  // namespace accord::plan
