#pragma once
// The largest or smallest elements of rows, as in kernels/top_k.hpp: the most extreme first, equal ones in the order
// of their positions. NaN is larger than everything else.

#include "device/numbers.hpp"

namespace accord::engine {

/// Each block processes one row. Each turn finds the element that follows the previous one, so no state is kept for a
/// row. Cost: k passes over the rows; 2 k for int64.
struct TopK {
  static constexpr const char* kName = "engine_top_k";
  static constexpr int kThreads = 256;
  bool largest = true;
  DType dtype = DType::kFloat32;            ///< of x and values
  std::int64_t rows = 0, width = 0, k = 0;  ///< width < 2^32
  const void* x = nullptr;                  ///< [rows, width], rows `x_row_stride` elements apart
  std::int64_t x_row_stride = 0;
  void* values = nullptr;           ///< [rows, k]
  std::int64_t* indices = nullptr;  ///< [rows, k]

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    for (std::int64_t row = block.block(); row < rows; row += block.blocks()) {
      const std::int64_t begin = row * x_row_stride;
      Place last{UINT64_MAX, -1};
      for (std::int64_t turn = 0; turn < k; ++turn) {
        last = dtype == DType::kInt64 ? next_of_wide(block, begin, last) : next(block, begin, last);
        if (block.thread() != 0) continue;
        indices[row * k + turn] = last.index;
        if (dtype == DType::kFloat32) {
          static_cast<float*>(values)[row * k + turn] = static_cast<const float*>(x)[begin + last.index];
        } else {
          device::store_integer(values, dtype, row * k + turn, device::load_integer(x, dtype, begin + last.index));
        }
      }
    }
  }

 private:
  struct Place {
    std::uint64_t order = 0;  ///< larger for elements that come earlier
    std::int64_t index = 0;
  };

  // For elements of up to 32 bits: one 64-bit number holds both the order and the position.
  template <typename Block>
  ACCORD_ON_DEVICE Place next(Block& block, std::int64_t begin, const Place& last) const {
    std::uint64_t best = 0;
    for (std::int64_t i = block.thread(); i < width; i += block.threads()) {
      const std::uint64_t key = (std::uint64_t{order_of(begin + i)} << 32) | ~static_cast<std::uint32_t>(i);
      if ((last.index < 0 || key < last.order) && key > best) best = key;
    }
    best = block.block_max(best);
    return {best, static_cast<std::int64_t>(~static_cast<std::uint32_t>(best))};
  }
  ACCORD_ON_DEVICE std::uint32_t order_of(std::int64_t at) const {
    std::uint32_t order = 0;
    if (dtype == DType::kFloat32) {
      const float value = static_cast<const float*>(x)[at];
      const std::uint32_t bits = device::bits_of(value == 0.0F ? 0.0F : device::canonical(value));
      order = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
    } else {
      order = static_cast<std::uint32_t>(device::load_integer(x, dtype, at)) ^ 0x80000000U;
    }
    return largest ? order : ~order;
  }

  // Finds the largest order of the remaining elements, then the first position that has it.
  template <typename Block>
  ACCORD_ON_DEVICE Place next_of_wide(Block& block, std::int64_t begin, const Place& last) const {
    const auto* const numbers = static_cast<const std::int64_t*>(x) + begin;
    const auto order = [&](std::int64_t i) {
      const std::uint64_t rising = static_cast<std::uint64_t>(numbers[i]) ^ (std::uint64_t{1} << 63);
      return largest ? rising : ~rising;
    };
    const auto is_left = [&](std::int64_t i) {
      return last.index < 0 || order(i) < last.order || (order(i) == last.order && i > last.index);
    };
    std::uint64_t best = 0;
    for (std::int64_t i = block.thread(); i < width; i += block.threads()) {
      if (is_left(i) && order(i) > best) best = order(i);
    }
    best = block.block_max(best);
    std::uint64_t first = 0;
    for (std::int64_t i = block.thread(); i < width; i += block.threads()) {
      const auto place = ~static_cast<std::uint64_t>(i);
      if (is_left(i) && order(i) == best && place > first) first = place;
    }
    return {best, static_cast<std::int64_t>(~block.block_max(first))};
  }
};

}  // namespace accord::engine
