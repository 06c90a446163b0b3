#pragma once
// Which of a library's kernels is the fastest for a product.

#include <bit>
#include <cstdint>
#include <functional>

#include "base/clock.hpp"
#include "device/blas.hpp"
#include "device/runtime.hpp"

namespace accord::device {

/// Tells the time.
using Now = std::function<Clock::time_point()>;

/// Times the library's kernels for `product` and makes the library use the fastest from then on (Blas::choose()).
/// Computes the product repeatedly, so afterwards `product.c` has the result of one of the kernels. Does nothing if
/// there is no choice to make or the product does not use it (Product::uses_choice), if beta is not 0 (c would change
/// each time), or if the stream is being captured.
///
/// Kernels need not add up in the same order, so two processes, or two ranks, may choose kernels with different bits.
///
/// Waits for the stream. Cost: each kernel runs about four times, or for about a millisecond if it is shorter. Kernels
/// that are much slower than the fastest run only twice.
Status choose_fastest(Blas& blas, Runtime& runtime, const Product& product, Device device, Stream stream,
                      const Now& now = Clock::now);

/// Rounds a number of rows up: products with equal results share a choice. Four results for each power of two.
inline std::int64_t rows_like(std::int64_t rows) {
  if (rows < 8) return rows;
  const auto step = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(rows - 1)) / 4);
  return (rows + step - 1) / step * step;
}

}  // namespace accord::device
