#pragma once
// Copies contiguous bytes, with a choice of cached or streaming stores.

#include <cstddef>
#include <cstdint>

namespace accord::kernels {

/// kTemporal leaves the destination in the cache, for data that is read again soon. kNonTemporal bypasses the cache
/// and avoids reading the destination first. It suits large blocks that another core reads or that nobody reads soon.
enum class Store : std::uint8_t { kTemporal, kNonTemporal };

/// Copies `bytes` bytes. `destination` and `source` must not overlap, but may be the same address. No alignment is
/// required. Non-temporal stores are fenced before the function returns, so a release store after it publishes them.
/// Cost: memory bandwidth. kNonTemporal moves 2 bytes over the memory bus per byte copied, kTemporal 3.
void copy(void* destination, const void* source, std::size_t bytes, Store store);

}  // namespace accord::kernels
