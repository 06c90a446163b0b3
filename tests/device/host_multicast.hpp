#pragma once
// Multicast of devices over host memory: one file holds the parts of all devices, and the address that represents all
// of them cannot be accessed.

#include <cstddef>
#include <vector>

namespace accord::testing {

/// Returns, for each device's part, the address that corresponds to `at`, which is inside a Multicast::all. Ends the
/// program if there is none, as a device would fault.
std::vector<std::byte*> addresses_of_all(const std::byte* at);

}  // namespace accord::testing
