#include "engine/runtime/device_name.hpp"

#include <fmt/format.h>

#include <charconv>

namespace accord::engine {

Result<Device> device_of_name(std::string_view name) {
  constexpr std::string_view kCuda = "cuda";
  if (name == "cpu") return Device();
  if (name == kCuda) return Device{DeviceType::kCuda, 0};
  Device device{DeviceType::kCuda, 0};
  if (name.starts_with(kCuda) && name[kCuda.size()] == ':') {
    const char* const end = name.data() + name.size();
    const auto [last, error] = std::from_chars(name.data() + kCuda.size() + 1, end, device.index);
    if (error == std::errc() && last == end && device.index >= 0) return device;
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("device \"{}\" does not exist; expected cpu, cuda, cuda:0, cuda:1, ...", name));
}

}  // namespace accord::engine
