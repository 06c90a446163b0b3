#pragma once
// Arrays of floats of any dtype in host memory, for kernels by themselves.

#include <cstring>
#include <vector>

#include "device/numbers.hpp"
#include "unit/engine/gpu/paged_sequences.hpp"

namespace accord::testing {

/// `count` numbers, aligned like a device's memory but for the first `offset` elements, which are not theirs.
class RowArray {
 public:
  /// NaNs.
  RowArray(DType dtype, std::size_t count, std::size_t offset = 0)
      : dtype_(dtype), count_(count), offset_(offset), memory_((count + offset) * size_of(dtype)) {}
  RowArray(DType dtype, const std::vector<float>& values, std::size_t offset = 0)
      : RowArray(dtype, values.size(), offset) {
    for (std::size_t i = 0; i < count_; ++i)
      device::store_float(memory_.data(), dtype_, static_cast<std::int64_t>(i + offset_), values[i]);
  }

  void* data() { return static_cast<std::byte*>(memory_.data()) + offset_ * size_of(dtype_); }
  float operator[](std::size_t i) const {
    return device::load_float(memory_.data(), dtype_, static_cast<std::int64_t>(i + offset_));
  }
  std::vector<float> values() const {
    std::vector<float> all;
    for (std::size_t i = 0; i < count_; ++i) all.push_back((*this)[i]);
    return all;
  }

 private:
  DType dtype_;
  std::size_t count_, offset_;
  NaNs memory_;
};

/// Numbers between -2 and 2 that the dtype has.
inline std::vector<float> numbers_in(DType dtype, std::size_t count, unsigned seed) {
  std::vector<float> values = some_numbers(count, seed);
  for (float& value : values) value = device::rounded_to(dtype, value);
  return values;
}

/// The relative error of one rounding to the dtype, and of a few sums.
inline float rounding_of(DType dtype) {
  return dtype == DType::kFloat32 ? 2e-6F : dtype == DType::kFloat16 ? 1e-3F : 8e-3F;
}

}  // namespace accord::testing
