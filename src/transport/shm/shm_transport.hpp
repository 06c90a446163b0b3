#pragma once
// Ranks that are processes of one host.

#include <memory>

#include "transport/transport.hpp"

namespace accord::transport {

/// "shm": windows are anonymous shared memory, passed through Unix sockets. Ranks may also be threads of one process.
/// Once all are connected, each peer process costs one file descriptor, and a link or a window none; a link costs two
/// if one of its processes cannot watch the other.
std::unique_ptr<Transport> make_shm_transport();

}  // namespace accord::transport
