#pragma once
// Random numbers as a function of a counter and a key: Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011).

#include <array>
#include <cstdint>

namespace accord::engine {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

/// Returns 128 random bits.
constexpr PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(first)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

}  // namespace accord::engine
