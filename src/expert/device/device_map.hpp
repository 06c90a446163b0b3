#pragma once
// A handle's map on a device, and how the host gets to know it.

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
  /// Its tables in `map`.
  void fill_in(Map& map) const;
  void set_last_use(const std::shared_ptr<comm::DeviceEvent>& event) { memory_.set_last_use(event); }

 private:
  explicit DevicePlacement(DeviceMemory memory) : memory_(std::move(memory)) {}
  DeviceMemory memory_;
  Map tables_;
};

class DeviceMap {
 public:
  /// For the largest map of a rank.
  static Result<std::shared_ptr<DeviceMap>> create(device::Runtime& runtime, Device device, Rank rank,
                                                   const ExpertGroupConfig& config, const ExpertLayerConfig& layer,
                                                   const Placement& placement, std::shared_ptr<DevicePlacement> tables);

  const Map& map() const { return map_; }
  Device device() const { return device_; }
  /// Those of its numbers that users may read, on the device.
  ConstBuffer counts() const;
  ConstBuffer numbers() const;
  ConstBuffer fingerprint() const;

  std::int64_t tokens = 0;  ///< of this rank, as prepare() was told
  Stream stream = {};       ///< in which it was prepared
  bool is_fetched = false;  ///< since then
  Status fetched;           ///< what that gave
  void set_last_use(const std::shared_ptr<comm::DeviceEvent>& event) {
    memory_.set_last_use(event);
    tables_->set_last_use(event);
  }
  /// Waits for what is in `stream`, and makes `routing` this map.
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

/// kResourceExhausted: which ranks of `group` would get more rows than their capacity.
Status overflow_error(const Routing& routing, std::string_view group);

}  // namespace accord::expert
