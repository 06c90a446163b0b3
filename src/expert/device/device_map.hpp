#pragma once
// A handle's map on a device, and its copy on the host.

#include <memory>

#include "accord/expert_parallel.hpp"
#include "expert/device/map.hpp"
#include "expert/device/memory.hpp"
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
  explicit DevicePlacement(DeviceMemory memory) : memory_(std::move(memory)) {}
  DeviceMemory memory_;
  Map tables_;
};

class DeviceMap {
 public:
  /// Allocates memory for the largest map that `rank` can have.
  static Result<std::shared_ptr<DeviceMap>> create(device::Runtime& runtime, Device device, Rank rank,
                                                   const ExpertGroupConfig& config, const ExpertLayerConfig& layer,
                                                   const Placement& placement, std::shared_ptr<DevicePlacement> tables);

  const Map& map() const { return map_; }
  Device device() const { return device_; }
  /// The map's numbers that users may read on the device.
  ConstBuffer counts() const;
  ConstBuffer numbers() const;
  ConstBuffer fingerprint() const;

  std::int64_t tokens = 0;  ///< tokens of this rank, as passed to prepare()
  Stream stream = {};       ///< stream in which it was prepared
  bool is_fetched = false;  ///< since the last prepare()
  Status fetched;           ///< result of that fetch
  void set_last_use(const std::shared_ptr<const device::Event>& event) {
    memory_.set_last_use(event);
    tables_->set_last_use(event);
  }
  /// Waits for the work in `from`, and makes `routing` equal to this map.
  Status copy_to(Routing& routing, const Placement& placement, Stream from);

 private:
  DeviceMap(device::Runtime& runtime, Device device, DeviceMemory memory, std::shared_ptr<DevicePlacement> tables)
      : runtime_(runtime), device_(device), memory_(std::move(memory)), tables_(std::move(tables)) {}
  device::Runtime& runtime_;
  const Device device_;
  DeviceMemory memory_;
  const std::shared_ptr<DevicePlacement> tables_;
  Map map_;
  int first_place_ = 0, last_place_ = 0;
};

/// Returns kResourceExhausted, which names the ranks of `group` that would get more rows than their capacity.
Status overflow_error(const Routing& routing, std::string_view group);

}  // namespace accord::expert
