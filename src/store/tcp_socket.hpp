#pragma once
// TCP sockets by host name and port, for IPv4, IPv6 and names.

#include <sys/socket.h>

#include <string>
#include <vector>

#include "accord/status.hpp"
#include "base/fd.hpp"

namespace accord::store {

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;
};

/// "tcp://10.0.0.1:29500", "tcp://[::1]:29500".
std::string tcp_url(const std::string& host, int port);

/// Returns all addresses of `host` (a name, or an IPv4 or IPv6 number, with or without brackets). Fails with
/// kNotFound if it has none, with kIo if no name server answers at present.
Result<std::vector<Address>> resolve(const std::string& host, int port);

/// Returns a non-blocking listening socket. A loopback host is served on that address only; any other host on all
/// addresses of the machine, since the machine may know itself by another address than its peers do. Port 0 picks a
/// free port. Fails with kInvalidArgument if `host` is another machine.
Result<UniqueFd> listen_at(const std::string& host, int port);

/// True if `address` belongs to this machine.
bool is_here(const Address& address);

/// The port that a socket is bound to.
Result<int> port_of(int fd);

/// The address at which a socket of this machine reaches `listening`.
Result<Address> local_address_of(int listening);

/// Returns a connected, non-blocking socket after a single attempt.
Result<UniqueFd> connect_to(const Address& address, Deadline deadline, const std::string& what);

/// Enables keepalive: the loss of the machine at the other end is detected within half a minute, even when idle.
void keep_alive(int fd);

}  // namespace accord::store
