#pragma once
// A tensor while a program is being prepared: it has a place, but no address yet.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "accord/communicator.hpp"
#include "kernels/view.hpp"

namespace accord::engine {

struct BatchRows;
class ContextRows;

using Sizes = std::vector<std::int64_t>;
/// A piece of a program's memory: an input, a weight, a constant, or a part of the arena.
using StorageId = int;

/// Strided elements in a storage. Several tensors may share one storage (views).
struct Tensor {
  DType dtype = DType::kFloat32;
  kernels::Layout layout;
  StorageId storage = -1;
  std::int64_t offset = 0;  ///< bytes from the start of the storage to the element with all indices 0
  /// For float8 weights on GPUs: the inputs that share a scale; 0: all inputs of an output (gpu/float8_products.hpp).
  int scale_group = 0;

  std::int64_t count() const { return layout.count(); }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype); }
  int dims() const { return layout.dims; }
  std::int64_t size(int dim) const { return layout.sizes[static_cast<std::size_t>(dim)]; }
  std::int64_t stride(int dim) const { return layout.strides[static_cast<std::size_t>(dim)]; }
  Sizes sizes() const { return Sizes(layout.sizes.begin(), layout.sizes.begin() + layout.dims); }
};

/// A sum over the ranks that is under way, in place.
struct StartedSum {
  StorageId storage = -1;
  Work work;
};

/// Base of the state that a target's steps need besides an Execution: host::Run, DeviceRun.
struct TargetRun {};

/// The environment of a step: the addresses of this run's storages, and the communicators of the engine's groups.
struct Execution {
  std::span<std::byte* const> bases;                                ///< indexed by StorageId; memory of `device`
  std::span<const std::optional<Communicator>> communicators = {};  ///< by group index; nullopt if it has one rank
  std::span<const BatchRows> batch = {};       ///< the sequences of a program with cached attention
  const ContextRows* context = nullptr;        ///< how ranks divide their rows; nullptr if they do not
  std::vector<StartedSum>* started = nullptr;  ///< of a program that sums while it computes
  std::int64_t largest_batch_part = 0;         ///< rows of the largest part of this run's batch
  const TargetRun* target = nullptr;           ///< of the program's target
  Device device = {};
  Stream stream = {};  ///< of the device: calls of the communicators are put there

  std::byte* address(const Tensor& tensor) const {
    return bases[static_cast<std::size_t>(tensor.storage)] + tensor.offset;
  }
  template <typename T>
  T* data(const Tensor& tensor) const {
    return reinterpret_cast<T*>(address(tensor));
  }
  kernels::ConstView read(const Tensor& tensor) const { return {address(tensor), tensor.dtype, tensor.layout}; }
  kernels::View write(const Tensor& tensor) const { return {address(tensor), tensor.dtype, tensor.layout}; }
};

/// A kernel call with everything but addresses settled.
using Step = std::function<Status(const Execution& execution)>;

/// Rows of floats or bytes: all dimensions but the last are treated as one.
struct Rows {
  std::int64_t rows = 1;
  std::int64_t width = 1;
  std::int64_t stride = 1;  ///< elements from row to row
};

/// Returns `layout` as rows if its last dimension is contiguous and the others merge into one with a constant stride;
/// else nullopt.
std::optional<Rows> as_rows(const kernels::Layout& layout);

/// Returns whether [batch, channels, height, width] is stored as [batch, height, width, channels], which convolutions
/// read and write.
bool is_channels_last(const kernels::Layout& layout);

/// Returns the layout that shows the elements of `layout` as `sizes` without a copy, like PyTorch's view; nullopt if
/// there is none.
std::optional<kernels::Layout> viewed_layout(const kernels::Layout& layout, std::span<const std::int64_t> sizes);

/// "[8, 128, 384]".
std::string sizes_text(std::span<const std::int64_t> sizes);

}  // namespace accord::engine
