#pragma once
// Memory of a device that is registered with a backend.

#include <memory>

#include "accord/device_window.hpp"
#include "accord/status.hpp"

namespace accord::comm {

class Group;

/// The state that a backend holds for one window. Releases it when destroyed, which may be after the backend. Any
/// thread.
class RegisteredMemory {
 public:
  virtual ~RegisteredMemory() = default;
  virtual void* data() const = 0;
  virtual WindowUse use() const = 0;
  /// What keeps the memory, also after it was deregistered; null if the program does. Releasing it waits for no rank.
  virtual std::shared_ptr<const void> allocation() const { return nullptr; }
  /// Whether plans access the memory of all ranks.
  virtual bool is_direct() const { return false; }
};

/// The state that a DeviceWindow refers to.
struct DeviceWindowState {
  std::shared_ptr<Group> group;  ///< a handle; released last
  Device device;
  std::size_t bytes;
  std::shared_ptr<RegisteredMemory> memory;
};

}  // namespace accord::comm
