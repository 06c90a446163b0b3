// Each element that is more extreme than the last one kept is inserted in order among the kept elements.
#include "kernels/top_k.hpp"

#include <algorithm>

namespace accord::kernels {

namespace {

template <typename T>
bool above(T a, T b) {
  return a > b || (a != a && b == b);  // NaN is above everything else
}

template <typename T>
void top_k_of(const TopKCall& call) {
  const bool largest = call.extreme == Extreme::kLargest;
  for (std::int64_t row = 0; row < call.rows; ++row) {
    const T* const x = static_cast<const T*>(call.x) + row * call.x_row_stride;
    T* const values = static_cast<T*>(call.values) + row * call.k;
    std::int64_t* const indices = call.indices + row * call.k;
    const auto before = [&](T a, T b) { return largest ? above(a, b) : above(b, a); };
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < call.width; ++i) {
      if (kept == call.k && (call.k == 0 || !before(x[i], values[kept - 1]))) continue;
      std::int64_t at = std::min(kept, call.k - 1);
      for (; at > 0 && before(x[i], values[at - 1]); --at) {
        values[at] = values[at - 1];
        indices[at] = indices[at - 1];
      }
      values[at] = x[i];
      indices[at] = i;
      kept = std::min(kept + 1, call.k);
    }
  }
}

using TopK = void (*)(const TopKCall& call);

TopK kernel_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return top_k_of<float>;
    case DType::kInt32: return top_k_of<std::int32_t>;
    case DType::kInt64: return top_k_of<std::int64_t>;
    case DType::kUInt8: return top_k_of<std::uint8_t>;
    default: return nullptr;
  }
}

}  // namespace

bool can_take_top_k(DType dtype) { return kernel_of(dtype) != nullptr; }

void top_k(const TopKCall& call) { kernel_of(call.dtype)(call); }

}  // namespace accord::kernels
