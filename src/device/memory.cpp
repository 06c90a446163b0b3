#include "device/memory.hpp"

#include <fmt/format.h>

#include "base/text.hpp"

namespace accord::device {

Result<Memory> Memory::allocate(Runtime& runtime, Device device, std::size_t bytes, std::string_view what) {
  return allocate(runtime, device, bytes, what, &Runtime::allocate);
}

Result<Memory> Memory::allocate_host(Runtime& runtime, Device device, std::size_t bytes, std::string_view what) {
  ACCORD_ASSIGN_OR_RETURN(Memory memory, allocate(runtime, device, bytes, what, &Runtime::allocate_host));
  memory.release_ = &Runtime::release_host;
  return memory;
}

Result<Memory> Memory::allocate(Runtime& runtime, Device device, std::size_t bytes, std::string_view what,
                                Allocate allocate) {
  Memory memory;
  if (bytes == 0) return memory;
  const Result<void*> data = (runtime.*allocate)(device, bytes);
  if (!data.ok()) return data.status().with_context(fmt::format("{} for {}", bytes_text(bytes), what));
  memory.runtime_ = &runtime;
  memory.device_ = device;
  memory.data_ = static_cast<std::byte*>(*data);
  memory.bytes_ = bytes;
  return memory;
}

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this == &other) return *this;
  release();
  runtime_ = other.runtime_;
  device_ = other.device_;
  release_ = other.release_;
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void Memory::leak() {
  data_ = nullptr;
  bytes_ = 0;
}

void Memory::release() {
  if (data_ != nullptr) (void)(runtime_->*release_)(device_, data_);
  leak();
}

}  // namespace accord::device
