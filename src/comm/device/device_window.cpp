// The public interface of memory that is registered with a backend.
#include "accord/device_window.hpp"

#include <fmt/format.h>

#include "base/text.hpp"
#include "comm/device/registered_memory.hpp"
#include "comm/group.hpp"

namespace accord {

std::string_view to_string(WindowUse use) {
  switch (use) {
    case WindowUse::kPlain: return "plain";
    case WindowUse::kRegistered: return "registered";
    case WindowUse::kSymmetric: return "symmetric";
  }
  return "unknown";
}

DeviceWindow::DeviceWindow(std::shared_ptr<comm::DeviceWindowState> state) : state_(std::move(state)) {}

Device DeviceWindow::device() const { return state_->device; }
void* DeviceWindow::data() const { return state_->memory->data(); }
std::size_t DeviceWindow::bytes() const { return state_->bytes; }
WindowUse DeviceWindow::use() const { return state_->memory->use(); }
bool DeviceWindow::is_direct() const { return state_->memory->is_direct(); }
Buffer DeviceWindow::buffer(std::size_t count, DType dtype, std::size_t offset) const {
  return {static_cast<std::byte*>(data()) + offset, count, dtype, device()};
}

namespace {

Result<DeviceWindow> open(const std::shared_ptr<comm::Group>& group, void* memory, std::size_t bytes, Device device,
                          const CallOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const auto open, group->keep_open("device_window"));
  const Duration timeout = options.timeout.value_or(group->options().timeout);
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<comm::RegisteredMemory> held,
                          group->device_channel().register_memory(memory, bytes, device, timeout));
  return DeviceWindow(std::make_shared<comm::DeviceWindowState>(
      comm::DeviceWindowState{.group = group, .device = device, .bytes = bytes, .memory = std::move(held)}));
}

}  // namespace

Result<DeviceWindow> Communicator::device_window(std::size_t bytes, Device device, const CallOptions& options) {
  return open(group_, nullptr, bytes, device, options);
}

Result<DeviceWindow> Communicator::device_window(Buffer memory, const CallOptions& options) {
  return open(group_, memory.data, memory.bytes(), memory.device, options);
}

}  // namespace accord
