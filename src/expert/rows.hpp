#pragma once
// Rows in memory, and the buffers of a call as rows. Kernels read the same structs.

#include <cstddef>
#include <cstdint>

#include "accord/buffer.hpp"
#include "device/kernel.hpp"

namespace accord::expert {

/// Bytes that belong to one token or slot.
struct RowBytes {
  std::size_t row = 0;
  std::size_t scales = 0;  ///< 0: no scales
  std::size_t weight = 0;  ///< 0: no weight
  std::size_t with_scales() const { return row + scales; }
};

/// Rows of tokens or slots, with their scales and weights; null: omitted.
struct ConstRows {
  const std::byte* rows = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* weights = nullptr;
};
struct Rows {
  std::byte* rows = nullptr;
  std::byte* scales = nullptr;
  std::byte* weights = nullptr;
  ACCORD_ON_DEVICE operator ConstRows() const { return {rows, scales, weights}; }
};

/// Row `i` of `rows`. `weight`: the index of its weight.
ACCORD_ON_DEVICE inline ConstRows row_at(const ConstRows& rows, std::size_t i, std::size_t weight,
                                         const RowBytes& bytes) {
  const auto at = [](const std::byte* all, std::size_t offset) { return all != nullptr ? all + offset : nullptr; };
  return {at(rows.rows, i * bytes.row), at(rows.scales, i * bytes.scales), at(rows.weights, weight * bytes.weight)};
}
ACCORD_ON_DEVICE inline Rows row_at(const Rows& rows, std::size_t i, std::size_t weight, const RowBytes& bytes) {
  const auto at = [](std::byte* all, std::size_t offset) { return all != nullptr ? all + offset : nullptr; };
  return {at(rows.rows, i * bytes.row), at(rows.scales, i * bytes.scales), at(rows.weights, weight * bytes.weight)};
}

inline const std::byte* bytes_of(const ConstBuffer& buffer) { return static_cast<const std::byte*>(buffer.data); }
inline std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }

/// Whether the ranks' calls have a certain buffer, in float32, or in float64 where that is allowed. kAny: this rank has
/// no elements of it in either case.
enum class Given : std::uint8_t { kNo, kYes, kFloat64, kAny };

/// Whether this rank's call has `buffer`.
inline bool is_given(const ConstBuffer& buffer) { return buffer.data != nullptr || buffer.count > 0; }

/// Whether a call has two buffers that go together. `elements`: the number that this rank would have in them; without
/// any it may omit both.
inline Given given(const ConstBuffer& one, const ConstBuffer& other, std::int64_t elements) {
  if (is_given(one) || is_given(other)) return Given::kYes;
  return elements > 0 ? Given::kNo : Given::kAny;
}

/// Dtype of the weights of a call that may omit one of two buffers.
inline DType weights_dtype(const ConstBuffer& one, const ConstBuffer& other) {
  return (is_given(one) ? one : other).dtype;
}

/// given() for weights.
inline Given weights_given(const ConstBuffer& one, const ConstBuffer& other, std::int64_t elements) {
  const Given any = given(one, other, elements);
  return any == Given::kYes && weights_dtype(one, other) == DType::kFloat64 ? Given::kFloat64 : any;
}

}  // namespace accord::expert
