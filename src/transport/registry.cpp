// The transports of this build, the preferred one first: memory of the same process, then of the same host, then
// whatever UCX finds between hosts (if its headers were available when accord was built). A new transport is one more
// line here. Transports are created on first use and never destroyed, so that objects with static lifetime can still
// close their endpoints when the process ends.
#include <string>
#include <vector>

#include "base/text.hpp"
#include "transport/inproc/inproc_transport.hpp"
#include "transport/shm/shm_transport.hpp"
#include "transport/transport.hpp"
#ifdef ACCORD_HAS_UCX
#include "transport/ucx/ucx_transport.hpp"
#endif

namespace accord::transport {

std::span<Transport* const> transports() {
  static Transport* const all[] = {
      make_inproc_transport().release(),
      make_shm_transport().release(),
#ifdef ACCORD_HAS_UCX
      make_ucx_transport().release(),
#endif
  };
  return all;
}

Result<Transport*> transport_by_name(std::string_view name) {
  std::vector<std::string_view> names;
  for (Transport* transport : transports()) {
    if (transport->name() == name) return transport;
    names.push_back(transport->name());
  }
  return Status(StatusCode::kNotFound, unknown_name("transport", name, names).message());
}

}  // namespace accord::transport
