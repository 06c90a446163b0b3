#pragma once
// NVSwitch multicast through the driver API. runtime.hpp documents the functions.

#include "device/runtime.hpp"

namespace accord::device::cuda {

Result<std::size_t> multicast_bytes(Device device, int devices, std::size_t bytes);
Result<Multicast> create_multicast(Device device, int devices, std::size_t bytes, UniqueFd& descriptor);
Result<Multicast> join_multicast(Device device, int descriptor, std::size_t bytes);
Status bind_multicast(Device device, Multicast& joined);
Status leave_multicast(Device device, const Multicast& joined);

}  // namespace accord::device::cuda
