// Works block by block: elements are widened into our own memory, accumulators are read in place. The sum is computed
// in a destination for accumulators, or in our own memory, and rounded from there to each destination that holds
// elements.

#include "exec/partial_sums.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise/row_kernels.hpp"

namespace accord::exec {

PartialKernels partial_kernels(DType dtype, ReduceOp op) {
  const DType accumulator = accumulator_of(dtype);
  if (accumulator == dtype) return {};
  return {.widen = kernels::convert_row_kernel(dtype, accumulator),
          .narrow = kernels::convert_row_kernel(accumulator, dtype),
          .reduce = kernels::reduce_kernel(accumulator, op),
          .element_bytes = size_of(dtype),
          .accumulator_bytes = size_of(accumulator)};
}

void PartialSums::reserve(int sources) {
  const auto needed = static_cast<std::size_t>(sources);
  if (blocks_.size() >= needed) return;
  blocks_.resize(needed);
  memory_.resize((needed + 1) * kBlock);
}

void PartialSums::reduce(const PartialKernels& kernels, std::span<const PartialOperand> sources,
                         std::span<const PartialOperand> destinations, std::size_t count) {
  float* const own_sum = memory_.data() + sources.size() * kBlock;
  const auto place = [&](const PartialOperand& operand, std::size_t first) {
    return operand.address + first * (operand.is_partial ? kernels.accumulator_bytes : kernels.element_bytes);
  };
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t now = std::min(kBlock, count - first);
    for (std::size_t s = 0; s < sources.size(); ++s) {
      blocks_[s] = place(sources[s], first);
      if (sources[s].is_partial) continue;
      float* const widened = memory_.data() + s * kBlock;
      kernels.widen(&blocks_[s], widened, static_cast<std::int64_t>(now), {});
      blocks_[s] = widened;
    }
    void* const sum = destinations[0].is_partial ? place(destinations[0], first) : static_cast<void*>(own_sum);
    kernels.reduce(sum, nullptr, blocks_.data(), nullptr, static_cast<int>(sources.size()), now);
    for (const PartialOperand& destination : destinations) {
      std::byte* const to = place(destination, first);
      const void* const from = sum;
      if (!destination.is_partial) {
        kernels.narrow(&from, to, static_cast<std::int64_t>(now), {});
      } else if (to != from) {
        std::memcpy(to, from, now * kernels.accumulator_bytes);
      }
    }
  }
}

}  // namespace accord::exec
