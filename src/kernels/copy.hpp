#pragma once
// Copies of contiguous bytes, with a choice of how the destination is stored.

#include <cstddef>
#include <cstdint>

namespace accord::kernels {

/// kTemporal leaves the destination in the cache: for what is read again soon. kNonTemporal writes past the cache and saves
/// reading the destination first: for large blocks that somebody else reads, or nobody does soon.
enum class Store : std::uint8_t { kTemporal, kNonTemporal };

/// Copies `bytes` bytes; `destination` and `source` do not overlap (the same address is allowed). No alignment is required.
/// Non-temporal stores are fenced before the function returns, so that a release store after it publishes them.
/// Cost: memory bandwidth; kNonTemporal moves 2 bytes per byte copied over the memory bus, kTemporal 3.
void copy(void* destination, const void* source, std::size_t bytes, Store store);

}  // namespace accord::kernels
