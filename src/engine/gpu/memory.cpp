#include "engine/gpu/memory.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/text.hpp"

namespace accord::engine {

Result<DeviceMemory> DeviceMemory::allocate(device::Runtime& runtime, Device device, std::size_t bytes,
                                            std::string_view what) {
  DeviceMemory memory;
  if (bytes == 0) return memory;
  const Result<void*> data = runtime.allocate(device, bytes);
  if (!data.ok()) return data.status().with_context(fmt::format("{} for {}", bytes_text(bytes), what));
  memory.runtime_ = &runtime;
  memory.device_ = device;
  memory.data_ = static_cast<std::byte*>(*data);
  memory.bytes_ = bytes;
  return memory;
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  runtime_ = other.runtime_;
  device_ = other.device_;
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void DeviceMemory::release() {
  if (data_ != nullptr) (void)runtime_->release(device_, data_);
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace accord::engine
