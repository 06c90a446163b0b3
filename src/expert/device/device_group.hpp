#pragma once
// The calls of a group whose buffers lie on GPUs: kernels in streams.

#include <memory>

#include "accord/expert_parallel.hpp"
#include "comm/device/device_channel.hpp"
#include "comm/device/peer_memory.hpp"
#include "comm/device/stop_word.hpp"
#include "expert/device/device_map.hpp"
#include "expert/device/meeting.hpp"
#include "expert/device/row_kernels.hpp"
#include "expert/handle.hpp"
#include "expert/rendezvous.hpp"

namespace accord::expert {

/// Where things lie in the memory of each rank, and how much of it there is.
SharedLayout layout_of(const ExpertGroupConfig& config, int ranks);

/// Calls return once their kernels are in the stream. REQUIRES, for all: their arguments were checked, and one call at a time.
class DeviceGroup {
 public:
  /// What this rank has for itself. kUnsupported, kInvalidArgument: it has no such device.
  static Result<std::unique_ptr<DeviceGroup>> create(comm::Group& group, const ExpertGroupConfig& config,
                                                     const Placement& placement);
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  /// Collective: the memory that all reach. All ranks get it, or all an error.
  Status connect();
  Result<std::shared_ptr<DeviceMap>> make_map(const ExpertLayerConfig& layer, const Placement& placement);

  Status prepare(Handle& handle, const ExpertRouting& routing);
  Status dispatch(const Handle& handle, const ExpertDispatch& call);
  Status combine(const Handle& handle, const ExpertCombine& call);
  Status dispatch_backward(const Handle& handle, const ExpertDispatchBackward& call);
  Status combine_backward(const Handle& handle, const ExpertCombineBackward& call);
  /// Returns once nobody writes into this rank's memory any more, as far as calls go that were made; or when the group has failed, or
  /// takes too long.
  void settle();

 private:
  DeviceGroup(comm::Group& group, const ExpertGroupConfig& config, device::Runtime& runtime, DeviceMemory own)
      : group_(group), config_(config), device_(config.device), runtime_(runtime), own_(std::move(own)) {}
  Status prepare_own();

  /// What the ranks have to agree on in a call.
  struct Terms {
    Operation operation = Operation::kPrepare;
    DType dtype = DType::kFloat32, result = DType::kFloat32;
    Given scales = Given::kNo, weights = Given::kNo;
  };
  /// Rows to the experts, and back.
  Status send(const Handle& handle, const Terms& terms, Stream stream, const ConstRows& tokens, const Rows& slots,
              std::int64_t room, const RowBytes& bytes);
  template <typename Finish>
  Status bring_back(const Handle& handle, const Terms& terms, Stream stream, const ConstRows& slots, std::int64_t room,
                    const RowBytes& bytes, Finish finish);
  template <typename Put>
  Status run(const Handle& handle, const Terms& terms, Stream stream, Put put);
  /// `items`: threads that have something to do.
  template <typename Kernel>
  Status launch(const Kernel& kernel, std::int64_t items, Stream stream, std::size_t shared_bytes = 0);
  Status number_slots(const Map& map, Stream stream);

  comm::Group& group_;
  const ExpertGroupConfig config_;
  const Device device_;
  device::Runtime& runtime_;
  DeviceMemory own_;  ///< pointers to the memory of all ranks, and this rank's words
  Stream stream_ = {};
  int most_blocks_ = 1;
  std::shared_ptr<comm::StopWord> stop_;
  std::shared_ptr<DevicePlacement> placement_;
  std::unique_ptr<comm::PeerMemory> shared_;
  Peers peers_;
};

}  // namespace accord::expert
