// A dimension is worth dividing if it has at least as many indices as there are threads. The outermost such dimension
// is chosen, because its blocks are separate in memory.
#include "engine/host/blocks.hpp"

namespace accord::engine {
namespace {

constexpr std::int64_t kMinElementsToSplit = std::int64_t{16} << 10;  // elements: about 5 us of work

template <typename ViewType, typename Byte>
ViewType narrow(ViewType view, const Block& block) {
  const int dim = view.layout.dims - 1 - block.from_last;
  if (dim < 0) return view;
  const auto index = static_cast<std::size_t>(dim);
  if (view.layout.sizes[index] == 1) return view;
  view.layout.sizes[index] = block.count;
  view.data = static_cast<Byte*>(view.data) +
              block.first * view.layout.strides[index] * static_cast<std::int64_t>(size_of(view.dtype));
  return view;
}

}  // namespace

kernels::ConstView narrowed(kernels::ConstView view, const Block& block) {
  return narrow<kernels::ConstView, const std::byte>(view, block);
}

kernels::View narrowed(kernels::View view, const Block& block) { return narrow<kernels::View, std::byte>(view, block); }

Split split_of(const kernels::Layout& output, int threads) {
  const int last = output.dims - 1;
  const Split whole{0, output.dims == 0 ? 1 : output.sizes[static_cast<std::size_t>(last)], 1};
  if (threads == 1 || output.count() < kMinElementsToSplit) return whole;
  for (int dim = 0; dim <= last; ++dim) {
    const std::int64_t size = output.sizes[static_cast<std::size_t>(dim)];
    if (size >= threads) return {last - dim, size, threads};
  }
  return whole;
}

}  // namespace accord::engine
