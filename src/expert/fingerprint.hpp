#pragma once
// The fingerprint of a routing map: a sum over the choices of all ranks, so that a device can add it up in any order.
//
// Equal maps have equal fingerprints on all ranks, on the CPU and on devices. Two different maps have the same
// fingerprint with a probability of 2^-64, which is low enough to detect that a map was replaced.

#include <cstdint>

#include "device/kernel.hpp"

namespace accord::expert {

/// Spreads the bits of `x` over all 64 bits: the finalizer of SplitMix64.
ACCORD_ON_DEVICE inline std::uint64_t spread(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// Fingerprint term of the k-th choice of a token of `rank`, sent to `place`.
ACCORD_ON_DEVICE inline std::uint64_t choice_fingerprint(int rank, std::int64_t token, int k, int place) {
  return spread(static_cast<std::uint64_t>(rank) * 0x9E3779B97F4A7C15ULL +
                static_cast<std::uint64_t>(token) * 0xC2B2AE3D27D4EB4FULL +
                static_cast<std::uint64_t>(k) * 0x165667B19E3779F9ULL +
                (static_cast<std::uint64_t>(place) + 1) * 0xD6E8FEB86659FD93ULL);
}

/// Fingerprint term of the number of tokens of `rank`.
ACCORD_ON_DEVICE inline std::uint64_t tokens_fingerprint(int rank, std::int64_t tokens) {
  return spread(static_cast<std::uint64_t>(rank) * 0xA0761D6478BD642FULL +
                static_cast<std::uint64_t>(tokens) * 0xE7037ED1A0B428DBULL + 1);
}

}  // namespace accord::expert
