#include "comm/device/event_pool.hpp"

#include <optional>

namespace accord::comm {

DeviceEvent::~DeviceEvent() {
  const std::lock_guard lock(pool_->mutex_);
  pool_->free_.push_back(event_);
}

Status DeviceEvent::block(Stream stream) { return pool_->runtime_.wait(event_, pool_->device_, stream); }

EventPool::~EventPool() {
  for (const device::Event event : free_) (void)runtime_.destroy_event(event);
}

Result<std::shared_ptr<DeviceEvent>> EventPool::record(Stream stream) {
  std::optional<device::Event> event;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
    }
  }
  if (!event) {
    ACCORD_ASSIGN_OR_RETURN(event, runtime_.create_event(device_));
  }
  auto mark = std::make_shared<DeviceEvent>(shared_from_this(), *event);
  ACCORD_RETURN_IF_ERROR(runtime_.record(*event, device_, stream));
  return mark;
}

}  // namespace accord::comm
