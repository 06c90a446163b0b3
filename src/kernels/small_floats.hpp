#pragma once
// Storage types for 8-bit and 16-bit floats: their bits in memory.

#include <cstdint>

namespace accord::kernels {

enum class Float16 : std::uint16_t {};
enum class BFloat16 : std::uint16_t {};
enum class Float8E4M3FN : std::uint8_t {};
enum class Float8E5M2 : std::uint8_t {};

}  // namespace accord::kernels
