#pragma once
// Memory of GPUs for kernels of a program's own.

#include <cstddef>
#include <memory>

#include "accord/buffer.hpp"
#include "accord/call_options.hpp"
#include "accord/channel_device.hpp"
#include "accord/communicator.hpp"
#include "accord/status.hpp"

namespace accord {

/// Memory on the GPU of each rank that kernels of all ranks of a group read and write, and ways to tell a peer so from inside a kernel
/// (channel_device.hpp). Zeroed.
///
/// A handle: copies refer to the same memory, which goes with the last one. May outlive the communicator. All kernels that use it have to be over by then, on
/// every rank: the caller sees to that, as by a barrier behind them.
class PeerWindow {
 public:
  /// Collective: all ranks get it, or none does, and the error names who could not. kUnsupported: a rank's GPU does not reach that of another (another host,
  /// no way between them).
  [[nodiscard]] static Result<PeerWindow> create(Communicator& communicator, std::size_t bytes, Device device,
                                                 const CallOptions& options = {});

  std::size_t bytes() const;
  Device device() const;
  /// That of `rank`, where kernels of this one find it, aligned to 256 bytes. REQUIRES: a rank of the group.
  void* memory(Rank rank) const;
  /// The way to `peer`, an argument for kernels. REQUIRES: another rank of the group.
  DeviceChannelHandle channel(Rank peer) const;
  /// Ends the waits of this rank's kernels, now and later: for when the group has failed, and a peer will not signal any more.
  void end_waits();

 private:
  struct State;
  explicit PeerWindow(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace accord
