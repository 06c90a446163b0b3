#pragma once
// GPU memory for a program's own kernels.

#include <cstddef>
#include <memory>

#include "accord/buffer.hpp"
#include "accord/call_options.hpp"
#include "accord/channel_device.hpp"
#include "accord/communicator.hpp"
#include "accord/status.hpp"

namespace accord {

/// Memory on the GPU of each rank that the kernels of all ranks of a group can read and write, and channels to signal
/// a peer from inside a kernel (channel_device.hpp). Zeroed.
///
/// A handle: copies refer to the same memory, which is freed with the last one. It may outlive the communicator. All
/// kernels that use it must have ended on every rank by then; the caller ensures that, for example with a barrier
/// after them.
class PeerWindow {
 public:
  /// Collective: all ranks get it, or none does, and the error names the rank that failed. Fails with kUnsupported if
  /// a rank's GPU cannot reach another rank's (it is on another host, or there is no path between them).
  [[nodiscard]] static Result<PeerWindow> create(Communicator& communicator, std::size_t bytes, Device device,
                                                 const CallOptions& options = {});

  std::size_t bytes() const;
  Device device() const;
  /// The memory of `rank`, at the address that this rank's kernels use, aligned to 256 bytes. REQUIRES: a rank of the
  /// group.
  void* memory(Rank rank) const;
  /// The channel to `peer`, an argument for kernels. REQUIRES: another rank of the group.
  DeviceChannelHandle channel(Rank peer) const;
  /// Ends the waits of this rank's kernels, current and future ones. Use it when the group has failed and a peer will
  /// not signal anymore.
  void end_waits();

 private:
  struct State;
  explicit PeerWindow(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace accord
