#pragma once
// The calls of a group whose buffers are on GPUs: kernels in streams.

#include <memory>

#include "accord/expert_parallel.hpp"
#include "comm/internal.hpp"
#include "expert/device/device_map.hpp"
#include "expert/device/meeting.hpp"
#include "expert/device/row_kernels.hpp"
#include "expert/handle.hpp"
#include "expert/rendezvous.hpp"

namespace accord::expert {

/// Returns the layout and size of each rank's shared memory.
SharedLayout layout_of(const ExpertGroupConfig& config, int ranks);

/// Runs a group's calls on a GPU. Calls return once their kernels are enqueued. REQUIRES, for all calls: checked
/// arguments, and one call at a time.
class DeviceGroup {
 public:
  /// Creates the resources private to this rank. Fails with kUnsupported or kInvalidArgument if the rank has no such
  /// device.
  static Result<std::unique_ptr<DeviceGroup>> create(const Communicator& communicator, const ExpertGroupConfig& config,
                                                     const Placement& placement);
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  /// Collective: creates the memory that all ranks reach. Either all ranks get it, or all get an error.
  Status connect();
  Result<std::shared_ptr<DeviceMap>> make_map(const ExpertLayerConfig& layer, const Placement& placement);

  Status prepare(Handle& handle, const ExpertRouting& routing);
  Status dispatch(const Handle& handle, const ExpertDispatch& call);
  Status combine(const Handle& handle, const ExpertCombine& call);
  Status dispatch_backward(const Handle& handle, const ExpertDispatchBackward& call);
  Status combine_backward(const Handle& handle, const ExpertCombineBackward& call);
  /// Blocks until no other rank writes into this rank's memory for a call already made. Returns early if the group
  /// has failed, and after a few seconds.
  void wait_for_peers();

 private:
  DeviceGroup(Communicator communicator, const ExpertGroupConfig& config, device::Runtime& runtime, DeviceMemory own)
      : communicator_(std::move(communicator)),
        config_(config),
        device_(config.device),
        runtime_(runtime),
        own_(std::move(own)) {}

  /// Call properties that the ranks must agree on.
  struct Terms {
    Operation operation = Operation::kPrepare;
    DType dtype = DType::kFloat32, result = DType::kFloat32;
    Given scales = Given::kNo, weights = Given::kNo;
  };
  /// send_rows() moves rows to the experts, return_rows() moves them back.
  Status send_rows(const Handle& handle, const Terms& terms, Stream stream, const ConstRows& tokens, const Rows& slots,
                   std::int64_t room, const RowBytes& bytes);
  template <typename Finish>
  Status return_rows(const Handle& handle, const Terms& terms, Stream stream, const ConstRows& slots, std::int64_t room,
                     const RowBytes& bytes, Finish finish);
  template <typename Enqueue>
  Status run(const Handle& handle, const Terms& terms, Stream stream, Enqueue enqueue);
  /// `items`: threads that have work.
  template <typename Kernel>
  Status launch(const Kernel& kernel, std::int64_t items, Stream stream, std::size_t shared_bytes = 0);
  Status number_slots(const Map& map, Stream stream);

  const Communicator communicator_;
  const ExpertGroupConfig config_;
  const Device device_;
  device::Runtime& runtime_;
  DeviceMemory own_;  ///< pointers to the memory of all ranks, and this rank's words
  Stream stream_ = {};
  int max_blocks_ = 1;
  std::shared_ptr<const std::uint64_t> stop_;
  std::shared_ptr<DevicePlacement> placement_;
  std::unique_ptr<comm::PeerMemory> shared_;
  Peers peers_;
};

}  // namespace accord::expert
