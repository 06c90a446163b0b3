#pragma once
// Reusable events of a device.

#include <memory>
#include <mutex>
#include <vector>

#include "comm/pending_work.hpp"
#include "device/runtime.hpp"

namespace accord::comm {

class EventPool;

/// An event that returns to its pool.
class DeviceEvent final : public DeviceMark {
 public:
  DeviceEvent(std::shared_ptr<EventPool> pool, device::Event event) : pool_(std::move(pool)), event_(event) {}
  ~DeviceEvent() override;
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;

  const device::Event& get() const { return event_; }
  Status block(Stream stream) override;

 private:
  const std::shared_ptr<EventPool> pool_;
  const device::Event event_;
};

/// Thread-safe.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  EventPool(device::Runtime& runtime, Device device) : runtime_(runtime), device_(device) {}
  ~EventPool();

  /// Records an event after the current contents of `stream`.
  Result<std::shared_ptr<DeviceEvent>> record(Stream stream);

 private:
  friend class DeviceEvent;
  device::Runtime& runtime_;
  const Device device_;
  std::mutex mutex_;
  std::vector<device::Event> free_;
};

}  // namespace accord::comm
