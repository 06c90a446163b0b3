#pragma once
// GPU memory that a group's calls use in place.

#include <cstddef>
#include <memory>
#include <string_view>

#include "accord/buffer.hpp"

namespace accord {

namespace comm {
struct DeviceWindowState;
}  // namespace comm

/// How NCCL uses the buffers of a window.
enum class WindowUse {
  kPlain,       ///< like any other memory: the library that makes the calls is too old to register it
  kRegistered,  ///< each rank's library knows this rank's memory, and copies less of it
  kSymmetric,   ///< the library knows the memory of all ranks: kernels read and write the memory of other ranks
};
std::string_view to_string(WindowUse use);

/// GPU memory of one rank that is registered with all ranks of a group; every rank registers the same size. Created
/// by Communicator::device_window(). Calls of the group on buffers in it copy less, depending on use() and
/// is_direct(); the results are the same.
///
/// A handle: copies refer to the same window. It keeps its communicator's group open and may outlive the
/// communicator. When the last handle is destroyed, the memory is deregistered, and freed if the window allocated it
/// and no rank of this process has the window any more; no call that uses it may still be in a stream then. Each rank
/// may release it at any time. Memory of the program's own must stay allocated until all ranks have released the
/// window: they have it open, and after a failed call they may still access it for a moment. Thread-safe.
class DeviceWindow {
 public:
  explicit DeviceWindow(std::shared_ptr<comm::DeviceWindowState> state);

  Device device() const;
  /// Aligned to 4096 bytes if the window allocated it. Not zeroed.
  void* data() const;
  std::size_t bytes() const;
  /// Equal on all ranks.
  WindowUse use() const;
  /// Whether accord's plans read and write the memory of all ranks in place (docs/gpu.md). Equal on all ranks.
  bool is_direct() const;
  /// `count` elements that begin `offset` bytes from the start. REQUIRES: they fit.
  Buffer buffer(std::size_t count, DType dtype, std::size_t offset = 0) const;

 private:
  std::shared_ptr<comm::DeviceWindowState> state_;
};

}  // namespace accord
