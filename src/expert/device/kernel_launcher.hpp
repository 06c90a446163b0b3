#pragma once
// Puts the kernels of a group's calls into streams.

#include <algorithm>
#include <memory>

#include "base/rounding.hpp"
#include "comm/internal.hpp"
#include "expert/device/row_exchange.hpp"
#include "expert/group_setup.hpp"

namespace accord::expert {

class KernelLauncher {
 public:
  /// Fails with kUnsupported or kInvalidArgument if the rank has no such device.
  static Result<KernelLauncher> create(std::shared_ptr<const GroupSetup> setup);

  const GroupSetup& setup() const { return *setup_; }
  const Communicator& communicator() const { return setup_->communicator; }
  Device device() const { return setup_->config.device; }
  device::Runtime& runtime() const { return *runtime_; }
  /// Nonzero, and read by kernels, once the group has failed.
  const std::shared_ptr<const std::uint64_t>& stop() const { return stop_; }
  /// Limits the blocks of launch_together() to this part of the device, whose other parts are those of other ranks.
  void share_device(int ranks) { max_together_ = std::max(1, max_together_ / ranks); }

  /// Blocks run in any order. `items`: threads that have work.
  template <typename Kernel>
  Status launch(const Kernel& kernel, std::int64_t items, Stream stream) const {
    return device::launch(runtime(), kernel, grid_of<Kernel>(items, max_blocks_), device(), stream);
  }
  /// All blocks run at the same time, at most one on each multiprocessor.
  template <typename Kernel>
  Status launch_together(const Kernel& kernel, std::int64_t items, Stream stream, std::size_t shared_bytes = 0) const {
    device::Grid grid = grid_of<Kernel>(items, max_together_);
    grid.together = true;
    grid.shared_bytes = shared_bytes;
    return device::launch(runtime(), kernel, grid, device(), stream);
  }
  /// Makes `enqueue` put the kernels of a call into the stream, watched like any call of the communicator. Returns the
  /// event at their end; null while the stream is captured.
  Result<std::shared_ptr<const device::Event>> run(const DeviceHandle& handle, const Terms& terms, Stream stream,
                                                   const std::function<Status()>& enqueue) const;

 private:
  KernelLauncher(std::shared_ptr<const GroupSetup> setup, device::Runtime& runtime)
      : setup_(std::move(setup)), runtime_(&runtime) {}
  template <typename Kernel>
  static device::Grid grid_of(std::int64_t items, int max_blocks) {
    const std::int64_t blocks = std::clamp<std::int64_t>(quotient_up(items, Kernel::kThreads), 1, max_blocks);
    return {.blocks = static_cast<int>(blocks), .threads = Kernel::kThreads};
  }

  std::shared_ptr<const GroupSetup> setup_;
  device::Runtime* runtime_;
  std::shared_ptr<const std::uint64_t> stop_;
  int max_blocks_ = 1, max_together_ = 1;
};

}  // namespace accord::expert
