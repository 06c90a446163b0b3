#pragma once
// Tensors in the form that kernels take, and the way in which kernels report faults.

#include <cstdint>

#include "accord/buffer.hpp"
#include "device/kernel.hpp"
#include "device/numbers.hpp"
#include "kernels/view.hpp"

namespace accord::engine {

/// The sizes that a kernel iterates over, row-major.
struct Shape {
  int dims = 0;
  std::int64_t sizes[kernels::kMaxDims] = {};
};

/// A tensor by its strides over the sizes that the kernel iterates over. For a single number, the strides are 0.
struct Operand {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t strides[kernels::kMaxDims] = {};
};

/// Rows of a tensor, `stride` elements apart.
struct RowOperand {
  void* data = nullptr;
  std::int64_t stride = 0;
};

/// Removes the last dimension, of `size`, from `index` and returns the position in that dimension.
ACCORD_ON_DEVICE inline std::int64_t take_last(std::int64_t& index, std::int64_t size) {
  std::int64_t at = 0;
  if ((index | size) >> 32 == 0) {  // 32-bit division is much faster
    const auto narrow = static_cast<std::uint32_t>(index), by = static_cast<std::uint32_t>(size);
    at = narrow % by;
    index = narrow / by;
  } else {
    at = index % size;
    index /= size;
  }
  return at;
}

/// For each of `count` operands, the offset of element `index` of `shape`, in elements from the start of its tensor.
template <int count>
struct Offsets {
  std::int64_t of[count] = {};
};
template <int count>
ACCORD_ON_DEVICE Offsets<count> offsets_at(const Shape& shape, const Operand (&operands)[count], std::int64_t index) {
  Offsets<count> offsets;
  for (int dim = shape.dims - 1; dim >= 0; --dim) {
    const std::int64_t at = dim > 0 ? take_last(index, shape.sizes[dim]) : index;
    for (int i = 0; i < count; ++i) offsets.of[i] += at * operands[i].strides[dim];
  }
  return offsets;
}

/// The faults that the kernels of a run found: how many, and the first one that was reported. In device memory; zero
/// before a run.
struct Fault {
  enum Kind : std::int64_t {
    kId,        ///< an id outside [0, size)
    kIndex,     ///< an id outside [-size, size)
    kDivision,  ///< an integer is divided by zero
  };
  std::uint64_t count = 0;
  std::uint64_t node = 0;  ///< the address of the Node on the host
  std::int64_t kind = kId;
  std::int64_t id = 0, position = 0, size = 0;
};

/// Where a kernel reports faults of its node.
struct FaultReport {
  Fault* fault = nullptr;
  std::uint64_t node = 0;
  template <typename Block>
  ACCORD_ON_DEVICE void report(Block& block, Fault::Kind kind, std::int64_t id, std::int64_t position,
                               std::int64_t size) const {
    if (block.add(&fault->count, 1) != 0) return;
    fault->node = node;
    fault->kind = kind;
    fault->id = id;
    fault->position = position;
    fault->size = size;
  }
};

}  // namespace accord::engine
