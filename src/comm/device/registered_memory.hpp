#pragma once
// Memory of a device that a backend knows.

#include <memory>

#include "accord/device_window.hpp"
#include "accord/status.hpp"

namespace accord::comm {

class Group;

/// What a backend holds for one window; lets go of it at the end, which may be after the backend's. Any thread.
class RegisteredMemory {
 public:
  virtual ~RegisteredMemory() = default;
  virtual void* data() const = 0;
  virtual WindowUse use() const = 0;
};

/// What a DeviceWindow refers to.
struct DeviceWindowState {
  std::shared_ptr<Group> group;  ///< a handle; goes last
  Device device;
  std::size_t bytes;
  std::shared_ptr<RegisteredMemory> memory;
};

}  // namespace accord::comm
