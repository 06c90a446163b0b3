#pragma once
// The dispatcher of a group whose buffers are on GPUs: kernels in streams.

#include <memory>

#include "accord/expert_parallel.hpp"
#include "expert/device/device_handle.hpp"
#include "expert/device/device_map.hpp"
#include "expert/device/kernel_launcher.hpp"
#include "expert/device/row_exchange.hpp"
#include "expert/token_dispatcher.hpp"

namespace accord::expert {

/// Calls return once their kernels are enqueued.
class DeviceDispatcher final : public TokenDispatcher {
 public:
  /// Creates the resources private to this rank. Fails with kUnsupported or kInvalidArgument if the rank has no such
  /// device.
  static Result<std::unique_ptr<TokenDispatcher>> create(std::shared_ptr<const GroupSetup> setup);

  /// Chooses how rows travel: kernels write them into the memory of other ranks if all ranks reach each other's, else
  /// the communicator's collectives carry them. kUnsupported or kNotFound if neither is possible.
  Status connect() override;
  Result<std::shared_ptr<Handle>> make_handle(const ExpertLayerConfig& layer) override;
  /// kUnsupported: windows hold CPU memory.
  Status add_window(const Window& window) override;

  Status prepare(Handle& handle, const ExpertRouting& routing, const Status& arguments) override;
  Status dispatch(const Handle& handle, const ExpertDispatch& call, const Status& arguments) override;
  Status combine(const Handle& handle, const ExpertCombine& call, const Status& arguments) override;
  Status dispatch_backward(const Handle& handle, const ExpertDispatchBackward& call, const Status& arguments) override;
  Status combine_backward(const Handle& handle, const ExpertCombineBackward& call, const Status& arguments) override;
  /// Ends the group, because kernels of other ranks may already be waiting.
  Status decline(const Status& why) override;

  /// Counts calls; has no maps.
  ExpertStatistics statistics() const override { return report_.statistics; }
  Report report() const override { return report_; }
  void wait_for_peers() override;

 private:
  DeviceDispatcher(std::shared_ptr<const GroupSetup> setup, KernelLauncher launcher,
                   std::shared_ptr<DevicePlacement> placement);
  /// Collective. Returns kUnsupported on all ranks, with this rank's reason, if not all ranks reach each other's
  /// memory.
  Status connect_memory();
  /// Collective. `no_memory`: why connect_memory() failed.
  Status connect_collectives(const Status& no_memory);
  /// Returns the error of a call whose arguments are invalid.
  Status refused(Operation operation, const Status& arguments) const;
  Status send_rows(const Handle& handle, const Move& move, const ConstRows& tokens, const Rows& slots);
  Status return_rows(const Handle& handle, const Move& move, const ConstRows& slots, const RowSums& sums,
                     std::byte* weights);

  const std::shared_ptr<const GroupSetup> setup_;
  const ExpertGroupConfig& config_;
  KernelLauncher launcher_;
  const std::shared_ptr<DevicePlacement> placement_;
  std::unique_ptr<RowExchange> exchange_;  ///< since connect()
  Report report_;
};

}  // namespace accord::expert
