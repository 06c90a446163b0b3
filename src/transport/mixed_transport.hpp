#pragma once
// Two transports for one group: one for the ranks of a host, another between hosts.

#include <memory>
#include <vector>

#include "transport/transport.hpp"

namespace accord::transport {

/// `host_of[r]`: number of rank r's host. Endpoints have one window, owned by `inside`; ranks of other hosts reach it
/// through `between`, which must accept existing memory (EndpointRequest::window). Both transports must outlive the
/// result.
std::shared_ptr<Transport> make_mixed_transport(Transport& inside, Transport& between, std::vector<int> host_of);

}  // namespace accord::transport
