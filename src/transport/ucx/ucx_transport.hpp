#pragma once
// Ranks on different hosts, over the fabrics that UCX finds between them: RDMA or TCP.

#include <memory>

#include "transport/transport.hpp"

namespace accord::transport {

/// Viable if UCX can be loaded. Reaches every rank; windows are not mapped. A link costs two descriptors, and each
/// pair of communicating processes a UCX connection. See docs/hosts.md.
std::unique_ptr<Transport> make_ucx_transport();

}  // namespace accord::transport
