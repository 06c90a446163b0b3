#pragma once
// Memory of a GPU that a group's calls use where it lies.

#include <cstddef>
#include <memory>
#include <string_view>

#include "accord/buffer.hpp"

namespace accord {

namespace comm {
struct DeviceWindowState;
}  // namespace comm

/// How calls on buffers in it go.
enum class WindowUse {
  kPlain,       ///< as on any other memory: the library that makes the calls is too old to know better
  kRegistered,  ///< each rank's library knows this rank's memory, and copies less of it
  kSymmetric,   ///< the library knows the memory of all ranks: kernels read and write that of others
};
std::string_view to_string(WindowUse use);

/// One rank's memory of a GPU that is registered with all ranks of a group, equally large on each; made by Communicator::device_window(). Calls of the group on
/// buffers in it copy less where use() says so; the results are the same.
///
/// A handle: copies refer to the same window. It keeps its communicator's group open and may outlive the communicator. The memory is deregistered, and freed
/// where the window allocated it, when the last handle goes: no call on it may be in a stream then. Each rank lets go of it when it likes. Thread-safe.
class DeviceWindow {
 public:
  explicit DeviceWindow(std::shared_ptr<comm::DeviceWindowState> state);

  Device device() const;
  /// Aligned to 4096 bytes where the window allocated it. Not zeroed.
  void* data() const;
  std::size_t bytes() const;
  /// Equal on all ranks.
  WindowUse use() const;
  /// `count` elements that begin `offset` bytes from the start. REQUIRES: they fit.
  Buffer buffer(std::size_t count, DType dtype, std::size_t offset = 0) const;

 private:
  std::shared_ptr<comm::DeviceWindowState> state_;
};

}  // namespace accord
