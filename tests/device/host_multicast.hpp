#pragma once
// Multicast of devices over host memory: the parts of all lie in one file, and the address that stands for all is one that nobody can touch.

#include <cstddef>
#include <vector>

namespace accord::testing {

/// Where the parts of all devices have the place for which `at`, of a Multicast::all, stands. Ends the program if it stands for none, as a device would fault.
std::vector<std::byte*> places_of_all(const std::byte* at);

}  // namespace accord::testing
