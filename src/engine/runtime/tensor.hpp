#pragma once
// A tensor while a program is prepared: where it will lie, but no address yet.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "accord/communicator.hpp"
#include "engine/runtime/thread_pool.hpp"
#include "kernels/view.hpp"

namespace accord::engine {

class ExpertExchanges;
class KeyValueCache;
struct BatchRows;
struct DeviceRun;

using Sizes = std::vector<std::int64_t>;
/// A piece of memory of a program: an input, a weight, a constant, or a part of the arena.
using StorageId = int;

/// Strided elements in a storage. Several tensors may lie in one (views).
struct Tensor {
  DType dtype = DType::kFloat32;
  kernels::Layout layout;
  StorageId storage = -1;
  std::int64_t offset = 0;  ///< bytes from the storage's begin to the element with all indices 0

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

/// What a step runs with: addresses of the storages of this run, threads, and the communicators of the engine's groups.
struct Execution {
  std::span<std::byte* const> bases;  ///< by StorageId
  ThreadPool& pool;
  std::span<const std::optional<Communicator>> communicators;  ///< by group index; empty where a group has one rank
  const KeyValueCache* cache = nullptr;                        ///< of a program with attention that keeps its keys
  std::span<const BatchRows> batch = {};                       ///< the sequences whose rows such a program computes
  std::vector<StartedSum>* started = nullptr;                  ///< of a program that sums while it computes
  ExpertExchanges* exchanges = nullptr;  ///< of a program whose ranks have other rows than each other,
  std::int64_t largest_batch_part = 0;   ///< of the batch of the run, the largest of their parts
  const DeviceRun* on_device = nullptr;  ///< of a program on a device: then the addresses are that one's

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
/// Makes the same step for a device, where a program is one on a device.
using MakeStep = std::function<Step()>;

/// Rows of floats or bytes: all dimensions but the last seen as one.
struct Rows {
  std::int64_t rows = 1;
  std::int64_t width = 1;
  std::int64_t stride = 1;  ///< elements from row to row
};

/// Sees `layout` as rows, if its last dimension is contiguous and the others lie one after the other at one distance.
std::optional<Rows> as_rows(const kernels::Layout& layout);

/// [batch, channels, height, width] whose memory is [batch, height, width, channels]: what convolutions read and write.
bool is_channels_last(const kernels::Layout& layout);

/// The strides with which `layout` shows its elements as `sizes` without a copy, as PyTorch's view.
std::optional<kernels::Layout> viewed_layout(const kernels::Layout& layout, std::span<const std::int64_t> sizes);

/// "[8, 128, 384]".
std::string sizes_text(std::span<const std::int64_t> sizes);

}  // namespace accord::engine
