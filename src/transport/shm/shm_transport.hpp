#pragma once
// Ranks that are processes of one host.

#include <memory>

#include "transport/transport.hpp"

namespace accord::transport {

/// "shm": windows are anonymous shared memory, handed over through Unix sockets. Ranks may also be threads of one
/// process. Costs two file descriptors for each link, one for each peer process, and none for a window once all are
/// connected.
std::unique_ptr<Transport> make_shm_transport();

}  // namespace accord::transport
