#pragma once
// A handle's map on a device, and its copy on the host.

#include <memory>

#include "accord/expert_parallel.hpp"
#include "expert/device/call_memory.hpp"
#include "expert/device/map.hpp"
#include "expert/group_setup.hpp"
#include "expert/placement.hpp"
#include "expert/routing.hpp"

namespace accord::expert {

/// The tables of a placement on a device.
class DevicePlacement {
 public:
  static Result<std::shared_ptr<DevicePlacement>> create(device::Runtime& runtime, Device device, Stream stream,
                                                         const Placement& placement);
  /// Sets the table pointers of `map`.
  void fill_in(Map& map) const;
  void set_last_use(const std::shared_ptr<const device::Event>& event) { memory_.set_last_use(event); }

 private:
  explicit DevicePlacement(CallMemory memory) : memory_(std::move(memory)) {}
  CallMemory memory_;
  Map tables_;
};

/// How the rows of a group travel. Maps for collectives also have the numbers of rows between the ranks.
enum class RowPath : std::uint8_t { kPeerMemory, kCollectives };

/// The map of one handle.
class DeviceMap {
 public:
  /// Allocates memory for the largest map that this rank can have.
  static Result<std::unique_ptr<DeviceMap>> create(device::Runtime& runtime, const GroupSetup& setup,
                                                   const ExpertLayerConfig& layer, RowPath path,
                                                   std::shared_ptr<DevicePlacement> tables);

  const Map& map() const { return map_; }
  /// Map::traffic on the host, for collectives.
  HostNumbers& traffic() const { return *traffic_; }
  /// The map's numbers that users may read on the device.
  ConstBuffer counts() const;
  ConstBuffer numbers() const;
  ConstBuffer fingerprint() const;

  void set_last_use(const std::shared_ptr<const device::Event>& event) {
    memory_.set_last_use(event);
    tables_->set_last_use(event);
  }
  /// Waits for the work in `from`, and makes `routing` equal to this map.
  Status copy_to(Routing& routing, const Placement& placement, Stream from);

 private:
  DeviceMap(device::Runtime& runtime, Device device, CallMemory memory, std::shared_ptr<DevicePlacement> tables)
      : runtime_(runtime), device_(device), memory_(std::move(memory)), tables_(std::move(tables)) {}
  device::Runtime& runtime_;
  const Device device_;
  CallMemory memory_;
  std::unique_ptr<HostNumbers> traffic_;
  const std::shared_ptr<DevicePlacement> tables_;
  Map map_;
  int first_place_ = 0, last_place_ = 0;
};

}  // namespace accord::expert
