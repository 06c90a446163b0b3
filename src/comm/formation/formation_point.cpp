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

Result<HandleListener> FormationPoint::take(std::string_view uuid, const Handle& handle, std::string_view where) {
  const std::lock_guard lock(mutex_);
  if (!listener_ || listener_->handle != handle)
    return Status(
        StatusCode::kWrongState,
        fmt::format("{}: another thread of this rank has used the handle; each is for one reconfiguration", where));
  HandleListener taken = *std::move(listener_);
  listener_.reset();
  const std::lock_guard of_uuids(uuids_->mutex);
  if (!uuids_->used.emplace(uuid).second)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: the uuid {} was already used", where, quoted_text(uuid)));
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
