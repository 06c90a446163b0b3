#pragma once
// Rows that kernels write into the memory of other ranks.

#include <memory>

#include "expert/device/kernel_launcher.hpp"
#include "expert/device/peers.hpp"
#include "expert/device/row_exchange.hpp"

namespace accord::expert {

/// The layout and size of each rank's shared memory.
SharedLayout layout_of(const ExpertGroupConfig& config, const Placement& placement);

/// Each call is one kernel. Calls return once it is enqueued.
class PeerExchange final : public RowExchange {
 public:
  /// Collective: gives each rank memory that the kernels of all ranks can access. Fails with kUnsupported, at least on
  /// the ranks that find it, if those of one rank cannot access that of another.
  static Result<std::unique_ptr<RowExchange>> create(KernelLauncher& launcher);
  ~PeerExchange() override;
  PeerExchange(const PeerExchange&) = delete;
  PeerExchange& operator=(const PeerExchange&) = delete;

  RowPath path() const override { return RowPath::kPeerMemory; }
  Status prepare(const DeviceHandle& handle, const RoutingInput& input, Stream stream) override;
  Status send_rows(const DeviceHandle& handle, const Move& move, const ConstRows& tokens, const Rows& slots) override;
  Status return_rows(const DeviceHandle& handle, const Move& move, const ConstRows& slots, RowSums sums,
                     std::byte* weights) override;
  void wait_for_peers() override;

 private:
  PeerExchange(KernelLauncher& launcher, CallMemory own) : launcher_(launcher), own_(std::move(own)) {}
  /// Collective: counts the ranks on this rank's device, which share its multiprocessors.
  Status share_device(std::string_view identity);
  Status share_memory();
  Status run(const DeviceHandle& handle, const Terms& terms, Stream stream, const std::function<Status()>& enqueue);

  KernelLauncher& launcher_;
  CallMemory own_;  ///< pointers to the memory of all ranks, and this rank's words
  Stream stream_ = {};
  std::unique_ptr<comm::PeerMemory> shared_;
  Peers peers_;
};

}  // namespace accord::expert
