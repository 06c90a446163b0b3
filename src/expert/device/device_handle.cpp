#include "expert/device/device_handle.hpp"

#include <algorithm>

namespace accord::expert {

void DeviceHandle::set_prepared(std::int64_t tokens, Stream stream) {
  tokens_ = tokens;
  stream_ = stream;
  is_fetched_ = false;
}

Status DeviceHandle::fetch(Stream stream) {
  is_fetched_ = true;
  fetched_ = map_->copy_to(routing, *placement, stream);
  const bool fails = fetched_.ok() && routing.overflows && map_->map().dropping == Dropping::kNone;
  if (fails) fetched_ = overflow_error(routing, group_name_);
  if (!fetched_.ok()) {
    // A map that cannot be fetched is treated as one without tokens.
    std::fill(routing.first_token.begin(), routing.first_token.end(), 0);
    route(routing, *placement);
  }
  add_up();
  return fetched_;
}

}  // namespace accord::expert
