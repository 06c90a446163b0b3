#pragma once
// Sizes that are whole numbers of something.

#include <cstdint>

namespace accord::kernels {

/// The next multiple of `step` from `value` up.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

}  // namespace accord::kernels
