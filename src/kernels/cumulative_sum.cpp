// The other dimensions are walked as rows. Lines that are adjacent in a row advance along `dim` together, one block
// of them at a time. Each line has an accumulator on the stack, so memory is read in order in either case.
#include "kernels/cumulative_sum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "kernels/elementwise/row_loop.hpp"

namespace accord::kernels {
namespace {

Layout without_dim(const Layout& layout, int dim) {
  Layout remaining;
  for (int i = 0; i < layout.dims; ++i) {
    if (i == dim) continue;
    remaining.sizes[remaining.dims] = layout.sizes[i];
    remaining.strides[remaining.dims++] = layout.strides[i];
  }
  return remaining;
}

template <typename T>
void run_sums(const ConstView& x, int dim, const View& y) {
  using Accumulator = std::conditional_t<std::is_same_v<T, float>, double, std::uint64_t>;
  constexpr std::int64_t kBlock = 256;
  Accumulator sums[kBlock];
  const Layout rest_x = without_dim(x.layout, dim), rest_y = without_dim(y.layout, dim);
  const RowLoop<2> lines({&rest_x, &rest_y});
  const std::int64_t x_across = lines.row_stride(0), y_across = lines.row_stride(1);
  lines.for_each_row([&](const std::array<std::int64_t, 2>& offsets) {
    for (std::int64_t first = 0; first < lines.row_size(); first += kBlock) {
      const std::int64_t count = std::min(kBlock, lines.row_size() - first);
      std::fill(sums, sums + count, Accumulator{0});
      const T* from = static_cast<const T*>(x.data) + offsets[0] + first * x_across;
      T* to = static_cast<T*>(y.data) + offsets[1] + first * y_across;
      for (std::int64_t i = 0; i < x.layout.sizes[dim]; ++i) {
        for (std::int64_t k = 0; k < count; ++k) {
          sums[k] += static_cast<Accumulator>(from[k * x_across]);
          to[k * y_across] = static_cast<T>(sums[k]);
        }
        from += x.layout.strides[dim];
        to += y.layout.strides[dim];
      }
    }
    return true;
  });
}

}  // namespace

Status cumulative_sum(const ConstView& x, int dim, const View& y) {
  const bool fits = x.layout.dims == y.layout.dims && dim >= 0 && dim < x.layout.dims &&
                    std::equal(x.layout.sizes.begin(), x.layout.sizes.begin() + x.layout.dims, y.layout.sizes.begin());
  if (!fits)
    return {StatusCode::kInvalidArgument,
            fmt::format("cumulative sum along dimension {}: the output's sizes differ, or the dimension does not exist",
                        dim)};
  if (x.dtype == y.dtype && x.dtype == DType::kFloat32) {
    run_sums<float>(x, dim, y);
  } else if (x.dtype == y.dtype && x.dtype == DType::kInt32) {
    run_sums<std::int32_t>(x, dim, y);
  } else if (x.dtype == y.dtype && x.dtype == DType::kInt64) {
    run_sums<std::int64_t>(x, dim, y);
  } else {
    return {StatusCode::kUnsupported, fmt::format("cumulative sum: no kernel from {} to {}", accord::to_string(x.dtype),
                                                  accord::to_string(y.dtype))};
  }
  return {};
}

}  // namespace accord::kernels
