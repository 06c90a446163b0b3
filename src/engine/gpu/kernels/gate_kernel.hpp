#pragma once
// The last step of a gated layer whose two products are computed first.

#include "engine/gpu/kernels/float8_kernels.hpp"
#include "engine/gpu/kernels/product_kernel.hpp"

namespace accord::engine {

/// y [rows, width] = activation(gates) * values, computed in float32 and rounded once. `values` may be y. If the width
/// is a multiple of 16 and everything begins at multiples of 16 bytes, a thread takes 16 elements at a time.
struct GateRows {
  static constexpr const char* kName = "engine_gate_rows";
  static constexpr int kThreads = 256;
  DType dtype = DType::kFloat32;  ///< float32, bfloat16 or float16
  kernels::Activation activation = kernels::Activation::kNone;
  std::int64_t rows = 0, width = 0;
  const std::byte* gates = nullptr;
  std::int64_t gate_row_bytes = 0;
  const std::byte* values = nullptr;
  std::int64_t value_row_bytes = 0;
  std::byte* y = nullptr;
  std::int64_t y_row_bytes = 0;

  template <typename Block>
  ACCORD_ON_DEVICE void operator()(Block& block) const {
    const auto starts = reinterpret_cast<std::uintptr_t>(gates) | reinterpret_cast<std::uintptr_t>(values) |
                        reinterpret_cast<std::uintptr_t>(y);
    const auto strides = static_cast<std::uintptr_t>(gate_row_bytes | value_row_bytes | y_row_bytes | width);
    if ((starts | strides) % kSixteen != 0) return compute_one_by_one(block);
    switch (dtype) {
      case DType::kBFloat16: return compute<DType::kBFloat16>(block);
      case DType::kFloat16: return compute<DType::kFloat16>(block);
      default: return compute<DType::kFloat32>(block);
    }
  }

 private:
  template <DType kDType, typename Block>
  ACCORD_ON_DEVICE void compute(Block& block) const {
    constexpr std::int64_t kBytes = 16 / kElementsOfWords<kDType> * kSixteen;  // of 16 elements
    const std::int64_t pieces = width / kSixteen;
    for (std::size_t i = block.first(); i < static_cast<std::size_t>(rows * pieces); i += block.stride()) {
      const auto index = static_cast<std::int64_t>(i);
      const std::int64_t row = quotient(index, pieces), at = (index - row * pieces) * kBytes;
      float by[kSixteen], numbers[kSixteen];
      load_sixteen<kDType>(gates + row * gate_row_bytes + at, by);
      load_sixteen<kDType>(values + row * value_row_bytes + at, numbers);
      ACCORD_UNROLLED
      for (int each = 0; each < kSixteen; ++each) numbers[each] *= activated(activation, by[each]);
      store_sixteen(kDType, y + row * y_row_bytes + at, numbers);
    }
  }
  template <typename Block>
  ACCORD_ON_DEVICE void compute_one_by_one(Block& block) const {
    for (std::size_t i = block.first(); i < static_cast<std::size_t>(rows * width); i += block.stride()) {
      const auto index = static_cast<std::int64_t>(i);
      const std::int64_t row = quotient(index, width), at = index - row * width;
      const float by = activated(activation, device::load_float(gates + row * gate_row_bytes, dtype, at));
      const float number = device::load_float(values + row * value_row_bytes, dtype, at);
      device::store_float(y + row * y_row_bytes, dtype, at, number * by);
    }
  }
};

}  // namespace accord::engine
