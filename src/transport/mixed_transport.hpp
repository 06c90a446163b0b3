#pragma once
// Two transports for one group: one for the ranks of a host, another one between hosts.

#include <memory>
#include <vector>

#include "transport/transport.hpp"

namespace accord::transport {

/// `host_of[r]`: a number of rank r's host. Endpoints have one window, which is that of `inside`; ranks of other hosts reach it
/// by `between`, which takes memory that exists (EndpointRequest::window). Both outlive it.
std::shared_ptr<Transport> make_mixed_transport(Transport& inside, Transport& between, std::vector<int> host_of);

}  // namespace accord::transport
