#pragma once
// The dispatcher of a group whose buffers are on GPUs: kernels in streams.

#include <memory>

#include "accord/expert_parallel.hpp"
#include "comm/internal.hpp"
#include "expert/device/device_handle.hpp"
#include "expert/device/device_map.hpp"
#include "expert/device/meeting.hpp"
#include "expert/group_setup.hpp"
#include "expert/rendezvous.hpp"
#include "expert/rows.hpp"
#include "expert/token_dispatcher.hpp"

namespace accord::expert {

/// Returns the layout and size of each rank's shared memory.
SharedLayout layout_of(const ExpertGroupConfig& config, int ranks);

/// Calls return once their kernels are enqueued.
class DeviceDispatcher final : public TokenDispatcher {
 public:
  /// Creates the resources private to this rank. Fails with kUnsupported or kInvalidArgument if the rank has no such
  /// device.
  static Result<std::unique_ptr<TokenDispatcher>> create(std::shared_ptr<const GroupSetup> setup);
  ~DeviceDispatcher() override;
  DeviceDispatcher(const DeviceDispatcher&) = delete;
  DeviceDispatcher& operator=(const DeviceDispatcher&) = delete;

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
  DeviceDispatcher(std::shared_ptr<const GroupSetup> setup, device::Runtime& runtime, CallMemory own);

  /// Collective: gives each rank memory that the kernels of all ranks can access.
  Status share_memory();
  /// Returns the error of a call whose arguments are invalid.
  Status refused(Operation operation, const Status& arguments) const;
  /// Call properties that the ranks must agree on.
  struct Terms {
    Operation operation = Operation::kPrepare;
    DType dtype = DType::kFloat32, result = DType::kFloat32;
    Given scales = Given::kNo, weights = Given::kNo;
  };
  /// A call that moves rows.
  struct Move {
    Terms terms;
    Stream stream;
    std::int64_t room = 0;  ///< rows that fit into the buffers of slots
    RowBytes bytes;
  };
  /// send_rows() moves rows to the experts, return_rows() moves them back.
  Status send_rows(const DeviceHandle& handle, const Move& move, const ConstRows& tokens, const Rows& slots);
  template <typename Finish>
  Status return_rows(const DeviceHandle& handle, const Move& move, const ConstRows& slots, Finish finish);
  template <typename Enqueue>
  Status run(const DeviceHandle& handle, const Terms& terms, Stream stream, Enqueue enqueue);
  /// `items`: threads that have work.
  template <typename Kernel>
  Status launch(const Kernel& kernel, std::int64_t items, Stream stream, std::size_t shared_bytes = 0);
  Status number_slots(const Map& map, Stream stream);

  const std::shared_ptr<const GroupSetup> setup_;
  const ExpertGroupConfig& config_;
  const Communicator communicator_;
  const Device device_;
  device::Runtime& runtime_;
  CallMemory own_;  ///< pointers to the memory of all ranks, and this rank's words
  Stream stream_ = {};
  int max_blocks_ = 1;
  std::shared_ptr<const std::uint64_t> stop_;
  std::shared_ptr<DevicePlacement> placement_;
  std::unique_ptr<comm::PeerMemory> shared_;
  Peers peers_;
  Report report_;
};

}  // namespace accord::expert
