#pragma once
// A handle whose map is computed on a device.

#include <memory>
#include <string>

#include "expert/device/device_map.hpp"
#include "expert/handle.hpp"

namespace accord::expert {

class DeviceHandle final : public Handle {
 public:
  DeviceHandle(const ExpertLayerConfig& of_layer, const GroupSetup& setup, std::unique_ptr<DeviceMap> map)
      : Handle(of_layer, setup), group_name_(setup.communicator.name()), map_(std::move(map)) {}

  std::int64_t tokens() const override { return tokens_; }
  std::int64_t min_slots() const override { return 0; }
  bool has_map() const override { return prepared && (!is_fetched_ || fetched_.ok()); }
  Status fetch(Stream stream) override;
  void fetch_once() override {
    if (!is_fetched_) (void)fetch(stream_);
  }
  ExpertDeviceMap on_device() const override { return {map_->counts(), map_->numbers(), map_->fingerprint()}; }

  DeviceMap& device_map() const { return *map_; }
  /// The map of `tokens` tokens of this rank is computed by kernels in `stream`.
  void set_prepared(std::int64_t tokens, Stream stream);

 private:
  const std::string group_name_;
  const std::unique_ptr<DeviceMap> map_;
  std::int64_t tokens_ = 0;  // of this rank, as passed to prepare()
  Stream stream_ = {};       // in which it was prepared
  bool is_fetched_ = false;  // since the last prepare()
  Status fetched_;           // result of that fetch
};

}  // namespace accord::expert
