#pragma once
// The largest or smallest elements of rows, as kernels/top_k.hpp has them: the most extreme first, of equal ones the one that stands first, and
// NaN is larger than all.

#include "device/numbers.hpp"

namespace accord::engine {

/// A block takes a row: each turn finds the next element behind the one before, so nothing is kept of a row. Cost: k passes over the rows.
struct TopK {
  static constexpr const char* kName = "engine_top_k";
  static constexpr int kThreads = 256;
  bool largest = true;
  std::int64_t rows = 0, width = 0, k = 0;  ///< width < 2^32
  const float* x = nullptr;                 ///< [rows, width], rows `x_row_stride` floats apart
  std::int64_t x_row_stride = 0;
  float* values = nullptr;          ///< [rows, k]
  std::int64_t* indices = nullptr;  ///< [rows, k]

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    for (std::int64_t row = block.block(); row < rows; row += block.blocks()) {
      const float* const its = x + row * x_row_stride;
      std::uint64_t last = UINT64_MAX;
      for (std::int64_t turn = 0; turn < k; ++turn) {
        std::uint64_t next = 0;
        for (std::int64_t i = block.thread(); i < width; i += block.threads()) {
          const std::uint64_t key = key_of(its[i], i);
          if (key < last && key > next) next = key;
        }
        last = block.block_max(next);
        const auto index = static_cast<std::int64_t>(~static_cast<std::uint32_t>(last));
        if (block.thread() != 0) continue;
        indices[row * k + turn] = index;
        values[row * k + turn] = its[index];
      }
    }
  }

 private:
  /// Larger the earlier an element comes; above 0.
  ACCORD_ON_DEVICE std::uint64_t key_of(float value, std::int64_t i) const {
    const std::uint32_t bits = device::bits_of(value == 0.0F ? 0.0F : device::canonical(value));
    const std::uint32_t order = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
    return (std::uint64_t{largest ? order : ~order} << 32) | ~static_cast<std::uint32_t>(i);
  }
};

}  // namespace accord::engine
