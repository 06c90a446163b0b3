#pragma once
// Reductions whose operands are partly elements and partly accumulators: how sums of 16-bit floats travel from rank
// to rank.

#include <cstddef>
#include <span>
#include <vector>

#include "accord/buffer.hpp"
#include "kernels/elementwise/row_loop.hpp"
#include "kernels/reduce/reduce.hpp"

namespace accord::exec {

/// The dtype in which incomplete sums are kept: fp32 for floats of 8 and 16 bits, otherwise the dtype itself.
/// Space::kPartials holds these.
constexpr DType accumulator_of(DType dtype) {
  return kind_of(dtype) == DTypeKind::kFloat && size_of(dtype) < size_of(DType::kFloat32) ? DType::kFloat32 : dtype;
}

/// The kernels of such a reduction. `reduce` is nullptr if a dtype is its own accumulator and needs none of this.
struct PartialKernels {
  kernels::RowKernel widen = nullptr;
  kernels::RowKernel narrow = nullptr;
  kernels::ReduceKernel reduce = nullptr;  ///< of accumulators
  std::size_t element_bytes = 0;
  std::size_t accumulator_bytes = 0;
};

/// All fields are nullptr if `dtype` is its own accumulator; `reduce` also if the op has no kernel, `widen` and
/// `narrow` if there is no conversion (float8).
PartialKernels partial_kernels(DType dtype, ReduceOp op);

/// Location of an operand, and whether it holds accumulators.
struct PartialOperand {
  std::byte* address = nullptr;
  bool is_partial = false;
};

/// Runs the reductions. Owns memory for a block of each operand, which reserve() allocates and which is kept.
class PartialSums {
 public:
  /// For steps of at most `sources` sources.
  void reserve(int sources);
  /// Every destination = the canonical tree over the sources, computed in accumulators, rounded for destinations that
  /// hold elements. A destination may be the same memory as a source of the same type. REQUIRES: reserve(), one or
  /// two destinations.
  void reduce(const PartialKernels& kernels, std::span<const PartialOperand> sources,
              std::span<const PartialOperand> destinations, std::size_t count);

 private:
  static constexpr std::size_t kBlock = 1024;  // elements; a few blocks of fp32 fit in the first-level cache

  std::vector<float> memory_;  // a block for each source, then one for the sum
  std::vector<const void*> blocks_;
};

}  // namespace accord::exec
