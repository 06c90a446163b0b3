#pragma once
// Divides an elementwise step among threads.

#include "engine/host/run.hpp"

namespace accord::engine {

/// Indices [first, first + count) of one dimension. The dimension is counted from the last one, so that a block also
/// fits inputs that are broadcast.
struct Block {
  int from_last = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Returns the part of a view. Inputs that repeat along the dimension are returned unchanged.
kernels::ConstView narrowed(kernels::ConstView view, const Block& block);
kernels::View narrowed(kernels::View view, const Block& block);

/// How a tensor is divided: the first dimension with enough indices for all threads, and the number of parts. Small
/// tensors have one part.
struct Split {
  int from_last = 0;
  std::int64_t size = 1;
  int parts = 1;
};
Split split_of(const kernels::Layout& output, int threads);

/// Calls body(block) for blocks that together cover all of `output`.
template <typename Body>
Status for_blocks(const Execution& execution, const kernels::Layout& output, const Body& body) {
  const Split split = split_of(output, host::pool_of(execution).threads());
  if (split.parts == 1) return body(Block{split.from_last, 0, split.size});
  return host::pool_of(execution).run(split.parts, [&](int part) {
    const PartRange range = part_range(split.size, 1, part, split.parts);
    return body(Block{split.from_last, range.first, range.last - range.first});
  });
}

}  // namespace accord::engine
