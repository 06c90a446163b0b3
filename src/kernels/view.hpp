#pragma once
// Strided views: how tensor kernels address their operands.

#include <array>
#include <cstdint>
#include <span>

#include "accord/buffer.hpp"
#include "accord/status.hpp"

namespace accord::kernels {

inline bool is_narrow_float(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }
/// True for a dtype that kernels compute in float32.
inline bool is_real(DType dtype) { return dtype == DType::kFloat32 || is_narrow_float(dtype); }

inline constexpr int kMaxDims = 8;
using Dims = std::array<std::int64_t, kMaxDims>;

/// Sizes and strides (in elements) of up to kMaxDims dimensions; a stride of 0 repeats (broadcasts) an element.
/// A scalar has no dimensions and one element.
struct Layout {
  int dims = 0;
  Dims sizes{};
  Dims strides{};

  std::int64_t count() const;
  /// Row-major without gaps. Dimensions of size 1 may have any stride.
  bool is_contiguous() const;
};

/// Row-major without gaps. REQUIRES: at most kMaxDims sizes, none negative.
Layout contiguous_layout(std::span<const std::int64_t> sizes);
/// REQUIRES: as many strides as sizes, at most kMaxDims.
Layout strided_layout(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides);
/// Broadcasts `layout` to `sizes` by NumPy's rule (aligned at the last dimension, size 1 repeats). Fails with
/// kInvalidArgument if it does not fit.
Result<Layout> broadcast_layout(const Layout& layout, std::span<const std::int64_t> sizes);
/// Dimension i of the result is dimension order[i] of `layout`. REQUIRES: `order` is a permutation of its dimensions.
Layout permuted_layout(const Layout& layout, std::span<const int> order);

/// Elements that a kernel reads. `data` points to the element whose indices are all 0. It needs only the element's
/// own alignment.
struct ConstView {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  Layout layout = {};
};

/// Elements that a kernel writes. A dimension of more than one element must not have stride 0.
struct View {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Layout layout = {};

  operator ConstView() const { return {data, dtype, layout}; }
};

}  // namespace accord::kernels
