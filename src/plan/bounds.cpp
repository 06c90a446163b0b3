// The chunks of a buffer are as equal as possible. If each can have at least a cache line, they are cut at multiples
// of a line (relative to the start of the buffer), and the first chunks get the remaining lines; shorter buffers are
// cut at elements. A divided space (all_gather's output, reduce_scatter's input) is one part of `count` elements for
// each rank. Each part is cut in the same way as an undivided space, so that corresponding chunks have equal lengths;
// if the parts differ, those of one part still do. The longer a part is, the longer is its longest chunk.

#include "plan/bounds.hpp"

#include <algorithm>
#include <numeric>

#include "plan/step_rules.hpp"

namespace accord::plan {
namespace {

constexpr std::size_t kCacheLine = 64;

std::vector<Range> cut(std::size_t count, std::size_t chunks, std::size_t element_bytes) {
  std::size_t unit = kCacheLine / std::gcd(kCacheLine, element_bytes);
  if (count / unit < chunks) unit = 1;
  const std::size_t units = count / unit + (count % unit != 0);
  std::vector<Range> ranges(chunks);
  std::size_t first = 0;
  for (std::size_t c = 0; c < chunks; ++c) {
    const std::size_t length = (units / chunks + (c < units % chunks)) * unit;
    ranges[c] = {first, std::min(length, count - first)};
    first += ranges[c].count;
  }
  return ranges;
}

std::vector<Range> repeat(const std::vector<Range>& part, std::size_t parts, std::size_t count) {
  std::vector<Range> ranges;
  ranges.reserve(part.size() * parts);
  for (std::size_t p = 0; p < parts; ++p) {
    for (const Range& range : part) ranges.push_back({p * count + range.first, range.count});
  }
  return ranges;
}

/// The chunks of a buffer of this rank: of each of its parts in turn, or of the whole.
std::vector<Range> cut_parts(std::span<const std::size_t> parts, std::size_t whole, std::size_t classes,
                             std::size_t element_bytes) {
  if (parts.empty()) return cut(whole, classes, element_bytes);
  std::vector<Range> ranges;
  std::size_t first = 0;
  for (const std::size_t part : parts) {
    for (const Range& range : cut(part, classes, element_bytes)) ranges.push_back({first + range.first, range.count});
    first += part;
  }
  return ranges;
}

}  // namespace

Bounds bounds_of(const Plan& plan, std::size_t count, std::size_t element_bytes) {
  const auto classes = static_cast<std::size_t>(length_classes(plan));
  if (classes == 0) return {};
  const std::vector<Range> part = cut(count, classes, element_bytes);
  Bounds bounds;
  bounds.input = repeat(part, static_cast<std::size_t>(plan.input_chunks) / classes, count);
  bounds.output = repeat(part, static_cast<std::size_t>(plan.output_chunks) / classes, count);
  for (const Range& range : part) bounds.longest = std::max(bounds.longest, range.count);
  return bounds;
}

Bounds bounds_of(const Plan& plan, const Extent& extent, std::size_t element_bytes) {
  const auto classes = static_cast<std::size_t>(length_classes(plan));
  if (classes == 0) return {};
  return {.input = cut_parts(extent.input_parts, extent.input_count, classes, element_bytes),
          .output = cut_parts(extent.output_parts, extent.output_count, classes, element_bytes),
          .longest = cut(extent.longest_part, classes, element_bytes).front().count};
}

}  // namespace accord::plan
