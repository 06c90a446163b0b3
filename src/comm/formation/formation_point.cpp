#include "comm/formation/formation_point.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/text.hpp"

namespace accord::comm {

Result<std::string> FormationPoint::handle() {
  const std::lock_guard lock(mutex_);
  if (!listener_) {
    ACCORD_ASSIGN_OR_RETURN(listener_, HandleListener::open());
  }
  return to_text(listener_->handle);
}

Result<HandleListener> FormationPoint::take(std::string_view uuid, std::string_view where) {
  const std::lock_guard lock(mutex_);
  if (!listener_)
    return Status(StatusCode::kWrongState,
                  fmt::format("{}: this rank has no handle; every handle is for one reconfiguration", where));
  const std::lock_guard of_uuids(uuids_->mutex);
  if (!uuids_->used.emplace(uuid).second)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: the uuid {} was already used", where, quoted_text(uuid)));
  HandleListener taken = *std::move(listener_);
  listener_.reset();
  return taken;
}

void FormationPoint::follow(const FormationPoint& other) {
  const std::scoped_lock lock(mutex_, other.mutex_);
  uuids_ = other.uuids_;
}

void FormationPoint::close() {
  const std::lock_guard lock(mutex_);
  listener_.reset();
}

}  // namespace accord::comm
