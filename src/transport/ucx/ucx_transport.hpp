#pragma once
// Ranks on different hosts, over what UCX finds between them: RDMA or TCP.

#include <memory>

#include "transport/transport.hpp"

namespace accord::transport {

/// Viable where UCX can be loaded. Reaches every rank; windows are not mapped. Links cost two descriptors each, hosts that talk
/// a connection of UCX for each pair of processes. See docs/hosts.md.
std::unique_ptr<Transport> make_ucx_transport();

}  // namespace accord::transport
