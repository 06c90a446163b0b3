#pragma once
// Floats of 8 and 16 bits, as what lies in memory: their bits.

#include <cstdint>

namespace accord::kernels {

enum class Float16 : std::uint16_t {};
enum class BFloat16 : std::uint16_t {};
enum class Float8E4M3FN : std::uint8_t {};
enum class Float8E5M2 : std::uint8_t {};

}  // namespace accord::kernels
