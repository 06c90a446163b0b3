#pragma once
// Walks several strided operands of equal sizes together, row by row, over as few dimensions as their strides allow.

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/view.hpp"

namespace accord::kernels {

/// The common walk over kOperands operands, in the memory order of the last one (the output). Dimensions of size 1
/// are removed. Neighboring dimensions that every operand crosses with a single stride are merged. The last dimension
/// is the row; there is always at least one.
template <std::size_t kOperands>
struct RowLoop {
  int dims = 0;
  Dims sizes{};
  std::array<Dims, kOperands> strides{};

  std::int64_t row_size() const { return sizes[dims - 1]; }
  std::int64_t row_stride(std::size_t operand) const { return strides[operand][dims - 1]; }

  /// REQUIRES: all layouts have the sizes of the first.
  explicit RowLoop(const std::array<const Layout*, kOperands>& layouts) {
    std::array<int, kMaxDims> order{};
    int count = 0;
    for (int i = 0; i < layouts[0]->dims; ++i) {
      if (layouts[0]->sizes[i] == 1) continue;
      int at = count++;
      for (; at > 0 && layouts.back()->strides[order[at - 1]] < layouts.back()->strides[i]; --at)
        order[at] = order[at - 1];
      order[at] = i;
    }
    for (int i = 0; i < count; ++i) append(layouts, order[i]);
    if (dims == 0) sizes[dims++] = 1;
  }

  /// Calls visit(offsets) for each row, with the offset in elements of each operand's row. Stops when visit returns
  /// false. Returns true if it never did. Makes no calls if any size is 0.
  template <typename Visit>
  bool for_each_row(Visit visit) const {
    for (int i = 0; i < dims; ++i) {
      if (sizes[i] == 0) return true;
    }
    Dims index{};
    std::array<std::int64_t, kOperands> offsets{};
    while (true) {
      if (!visit(offsets)) return false;
      int i = dims - 2;
      for (; i >= 0; --i) {
        for (std::size_t operand = 0; operand < kOperands; ++operand) offsets[operand] += strides[operand][i];
        if (++index[i] < sizes[i]) break;
        for (std::size_t operand = 0; operand < kOperands; ++operand)
          offsets[operand] -= strides[operand][i] * sizes[i];
        index[i] = 0;
      }
      if (i < 0) return true;
    }
  }

 private:
  void append(const std::array<const Layout*, kOperands>& layouts, int i) {
    const std::int64_t size = layouts[0]->sizes[i];
    bool merges = dims > 0;
    for (std::size_t operand = 0; merges && operand < kOperands; ++operand) {
      merges = strides[operand][dims - 1] == layouts[operand]->strides[i] * size;
    }
    if (!merges) ++dims;
    sizes[dims - 1] = merges ? sizes[dims - 1] * size : size;
    for (std::size_t operand = 0; operand < kOperands; ++operand) {
      strides[operand][dims - 1] = layouts[operand]->strides[i];
    }
  }
};

/// Numbers that a row kernel needs besides its rows: limits for clamp, an exponent for pow.
struct RowParameters {
  double real[2] = {0.0, 0.0};
  std::int64_t integer[2] = {0, 0};
};

/// Computes `count` contiguous elements of the output from as many elements of each input. Returns false if a value
/// has no result (an integer divided by zero).
using RowKernel = bool (*)(const void* const* inputs, void* output, std::int64_t count,
                           const RowParameters& parameters);

/// How a kernel sees float16 and bfloat16: unchanged, or as float32 that is rounded once when it is stored.
enum class NarrowFloats : std::uint8_t { kUnchanged, kAsFloat32 };

/// Runs `kernel` over operands of equal sizes (at most 3 inputs). Non-contiguous rows of inputs and outputs pass
/// through blocks on the stack, as do narrow floats that the kernel sees as float32. Stops at the first call of the
/// kernel that returns false. Returns true if every call returned true.
bool run_rows(RowKernel kernel, std::span<const ConstView> inputs, const View& output,
              const RowParameters& parameters = {}, NarrowFloats narrow = NarrowFloats::kUnchanged);

}  // namespace accord::kernels
