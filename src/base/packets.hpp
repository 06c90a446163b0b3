#pragma once
// Packets of a SOCK_SEQPACKET socket.

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <span>

namespace accord {

/// recv() and recvmsg() on a SOCK_SEQPACKET socket, again after a signal. Linux may report the end of such a socket
/// although a packet can still be read, if the other side sends it and closes at that moment. These functions then ask
/// once more, so 0 is the end.
ssize_t receive_packet(int fd, std::span<std::byte> packet, int flags);
ssize_t receive_packet(int fd, msghdr& message, int flags);

}  // namespace accord
