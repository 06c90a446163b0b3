#pragma once
// Ranks that are threads of one process.

#include <memory>

#include "transport/transport.hpp"

namespace accord::transport {

/// "inproc": windows are private memory of the process, found through a table shared by all its ranks. A peer is
/// never kLost, only kLeft. There is no liveness descriptor; peer_state() is always up to date.
std::unique_ptr<Transport> make_inproc_transport();

}  // namespace accord::transport
