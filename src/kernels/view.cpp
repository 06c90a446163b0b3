// Layout arithmetic: sizes and strides.

#include "kernels/view.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace accord::kernels {

std::int64_t Layout::count() const {
  std::int64_t count = 1;
  for (int i = 0; i < dims; ++i) count *= sizes[i];
  return count;
}

bool Layout::is_contiguous() const {
  std::int64_t expected = 1;
  for (int i = dims - 1; i >= 0; --i) {
    if (sizes[i] != 1 && strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

Layout contiguous_layout(std::span<const std::int64_t> sizes) {
  Layout layout;
  layout.dims = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), layout.sizes.begin());
  std::int64_t stride = 1;
  for (int i = layout.dims - 1; i >= 0; --i) {
    layout.strides[i] = stride;
    stride *= layout.sizes[i];
  }
  return layout;
}

Layout strided_layout(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides) {
  Layout layout;
  layout.dims = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), layout.sizes.begin());
  std::copy(strides.begin(), strides.end(), layout.strides.begin());
  return layout;
}

Result<Layout> broadcast_layout(const Layout& layout, std::span<const std::int64_t> sizes) {
  Layout result;
  result.dims = static_cast<int>(sizes.size());
  const int added = result.dims - layout.dims;
  bool fits = added >= 0 && result.dims <= kMaxDims;
  for (int i = 0; fits && i < result.dims; ++i) {
    result.sizes[i] = sizes[i];
    if (i < added) continue;  // an added dimension repeats: stride 0
    const std::int64_t size = layout.sizes[i - added];
    fits = size == sizes[i] || size == 1;
    if (size == sizes[i]) result.strides[i] = layout.strides[i - added];
  }
  if (fits) return result;
  return Status(StatusCode::kInvalidArgument,
                fmt::format("sizes [{}] cannot be broadcast to [{}]",
                            fmt::join(layout.sizes.begin(), layout.sizes.begin() + layout.dims, ", "),
                            fmt::join(sizes.begin(), sizes.end(), ", ")));
}

Layout permuted_layout(const Layout& layout, std::span<const int> order) {
  Layout result;
  result.dims = layout.dims;
  for (int i = 0; i < layout.dims; ++i) {
    result.sizes[i] = layout.sizes[order[i]];
    result.strides[i] = layout.strides[order[i]];
  }
  return result;
}

}  // namespace accord::kernels
