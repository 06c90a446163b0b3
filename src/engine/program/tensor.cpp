// Layout arithmetic. A view exists if the input's dimensions, taken from the last one in runs without gaps, can be
// cut into the output's dimensions.
#include "engine/program/tensor.hpp"

#include <algorithm>
#include <string>

namespace accord::engine {

std::optional<Rows> as_rows(const kernels::Layout& layout) {
  if (layout.dims == 0) return Rows{};
  const auto last = static_cast<std::size_t>(layout.dims - 1);
  Rows rows;
  rows.width = layout.sizes[last];
  if (rows.width != 1 && layout.strides[last] != 1) return std::nullopt;
  rows.stride = rows.width;
  for (int i = layout.dims - 2; i >= 0; --i) {
    const auto dim = static_cast<std::size_t>(i);
    if (layout.sizes[dim] == 1) continue;
    if (rows.rows == 1) {
      rows.stride = layout.strides[dim];
    } else if (layout.strides[dim] != rows.stride * rows.rows) {
      return std::nullopt;
    }
    rows.rows *= layout.sizes[dim];
  }
  // A row that is repeated (stride 0) is not a row of its own.
  if (rows.rows > 1 && rows.stride < rows.width) return std::nullopt;
  return rows;
}

std::optional<kernels::Layout> viewed_layout(const kernels::Layout& layout, std::span<const std::int64_t> sizes) {
  if (layout.count() == 0 || layout.is_contiguous()) return kernels::contiguous_layout(sizes);
  std::vector<std::size_t> dims;  // of the input, without those of one element
  for (std::size_t dim = 0; dim < static_cast<std::size_t>(layout.dims); ++dim) {
    if (layout.sizes[dim] != 1) dims.push_back(dim);
  }
  std::vector<std::int64_t> strides(sizes.size(), 0);
  auto output = static_cast<std::ptrdiff_t>(sizes.size()) - 1;
  while (!dims.empty()) {
    // A run: input dimensions without gaps between them.
    std::int64_t run = layout.sizes[dims.back()];
    const std::int64_t base = layout.strides[dims.back()];
    dims.pop_back();
    while (!dims.empty() && layout.strides[dims.back()] == base * run) {
      run *= layout.sizes[dims.back()];
      dims.pop_back();
    }
    std::int64_t covered = 1;
    for (; output >= 0 && covered < run; --output) {
      strides[static_cast<std::size_t>(output)] = base * covered;
      covered *= sizes[static_cast<std::size_t>(output)];
    }
    if (covered != run) return std::nullopt;
  }
  for (; output >= 0; --output) {
    if (sizes[static_cast<std::size_t>(output)] != 1) return std::nullopt;
  }
  return kernels::strided_layout(sizes, strides);
}

bool is_channels_last(const kernels::Layout& layout) {
  static constexpr int kInMemory[] = {0, 2, 3, 1};
  return layout.dims == 4 && kernels::permuted_layout(layout, kInMemory).is_contiguous();
}

std::string sizes_text(std::span<const std::int64_t> sizes) {
  std::string text = "[";
  for (std::size_t i = 0; i < sizes.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  return text + "]";
}

}  // namespace accord::engine
