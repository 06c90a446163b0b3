#pragma once
// Tensors as kernels take them, and how kernels tell what they find wrong.

#include <cstdint>

#include "accord/buffer.hpp"
#include "device/kernel.hpp"
#include "device/numbers.hpp"
#include "kernels/view.hpp"

namespace accord::engine {

/// The sizes that a kernel goes through, row-major.
struct Shape {
  int dims = 0;
  std::int64_t sizes[kernels::kMaxDims] = {};
};

/// A tensor by its strides over the sizes that the kernel goes through; of a number 0.
struct Operand {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t strides[kernels::kMaxDims] = {};
};

/// `index` without its last dimension, of `size`; gives the place in that.
ACCORD_ON_DEVICE inline std::int64_t take_last(std::int64_t& index, std::int64_t size) {
  std::int64_t at = 0;
  if ((index | size) >> 32 == 0) {  // which divides much faster
    const auto narrow = static_cast<std::uint32_t>(index), by = static_cast<std::uint32_t>(size);
    at = narrow % by;
    index = narrow / by;
  } else {
    at = index % size;
    index /= size;
  }
  return at;
}

/// The elements from the tensor's begin to the one that is number `index` of `shape`, for each of `count` operands.
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

/// What kernels of a run found wrong: how often, and the first of it that was told. In memory of the device, zero before a run.
struct Fault {
  enum Kind : std::int64_t {
    kId,        ///< an id outside [0, size)
    kIndex,     ///< one outside [-size, size)
    kDivision,  ///< of a whole number by zero
  };
  std::uint64_t count = 0;
  std::uint64_t node = 0;  ///< the address of the Node on the host
  std::int64_t kind = kId;
  std::int64_t id = 0, position = 0, size = 0;
};

/// Where a kernel tells what is wrong with its node.
struct FaultReport {
  Fault* fault = nullptr;
  std::uint64_t node = 0;
  template <typename Block>
  ACCORD_ON_DEVICE void tell(Block& block, Fault::Kind kind, std::int64_t id, std::int64_t position,
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
