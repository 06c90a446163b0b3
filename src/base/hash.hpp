#pragma once
// Hashes: XXH3 to detect damage, SHA-256 to establish identity.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace accord {

/// XXH3-64 of `bytes`.
std::uint64_t xxh3(std::span<const std::byte> bytes);
/// SHA-256 of `bytes` as 64 hexadecimal digits.
std::string sha256_hex(std::span<const std::byte> bytes);
/// `value` as 16 hexadecimal digits.
std::string hex64(std::uint64_t value);

}  // namespace accord
