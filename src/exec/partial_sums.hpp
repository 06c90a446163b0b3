#pragma once
// Reductions whose operands are partly elements and partly accumulators: how sums of 16-bit floats go from rank to rank.

#include <cstddef>
#include <span>
#include <vector>

#include "accord/buffer.hpp"
#include "kernels/reduce.hpp"
#include "kernels/row_loop.hpp"

namespace accord::exec {

/// What sums of a dtype are kept in until they are complete: fp32 for floats of 8 and 16 bits, for others the dtype itself. That is what
/// Space::kPartials holds.
constexpr DType accumulator_of(DType dtype) {
  return kind_of(dtype) == DTypeKind::kFloat && size_of(dtype) < size_of(DType::kFloat32) ? DType::kFloat32 : dtype;
}

/// What such a reduction computes with; `reduce` is nullptr where a dtype is its own accumulator and needs none of this.
struct PartialKernels {
  kernels::RowKernel widen = nullptr;
  kernels::RowKernel narrow = nullptr;
  kernels::ReduceKernel reduce = nullptr;  ///< of accumulators
  std::size_t element_bytes = 0;
  std::size_t accumulator_bytes = 0;
};

/// Every member is nullptr where `dtype` is its own accumulator, `reduce` also where the op has no kernel, `widen` and
/// `narrow` where there is no conversion (float8).
PartialKernels partial_kernels(DType dtype, ReduceOp op);

/// Where an operand lies, and whether it holds accumulators.
struct PartialOperand {
  std::byte* address = nullptr;
  bool is_partial = false;
};

/// Runs them. Has memory of its own for a block of each operand, which reserve() gets and which stays.
class PartialSums {
 public:
  /// For steps of at most that many sources.
  void reserve(int sources);
  /// Every destination = the canonical tree over the sources, computed in accumulators, rounded for destinations that hold
  /// elements. A destination may be the same memory as a source that holds the same. REQUIRES: reserve(), one or two destinations.
  void reduce(const PartialKernels& kernels, std::span<const PartialOperand> sources,
              std::span<const PartialOperand> destinations, std::size_t count);

 private:
  static constexpr std::size_t kBlock = 1024;  // elements; a few blocks of fp32 stay in the first cache

  std::vector<float> memory_;  // a block for each source, then one for the sum
  std::vector<const void*> blocks_;
};

}  // namespace accord::exec
