#pragma once
// Rounding of sizes, and conversion of counts to sizes.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace accord {

/// value / step, rounded up. REQUIRES: value >= 0, step > 0.
template <std::integral T>
constexpr T quotient_up(T value, std::type_identity_t<T> step) {
  return (value + step - 1) / step;
}

/// The smallest multiple of `step` that is not below `value`.
template <std::integral T>
constexpr T round_up(T value, std::type_identity_t<T> step) {
  return quotient_up(value, step) * step;
}

/// A count or an index as a size. REQUIRES: count >= 0.
constexpr std::size_t to_size(std::int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace accord
