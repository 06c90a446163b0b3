#pragma once
// TCP sockets by host name and port: IPv4, IPv6 and names alike.

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

/// All addresses of `host` (a name, or a number of IPv4 or IPv6, in brackets or not). kNotFound if it has none, kIo
/// if nobody who might know answers for now.
Result<std::vector<Address>> resolve(const std::string& host, int port);

/// A non-blocking listening socket. A loopback host is served on that address only; any other on all addresses of the
/// machine, since a machine may know itself by another address than its peers do. Port 0 takes a free one.
/// kInvalidArgument if `host` is another machine.
Result<UniqueFd> listen_at(const std::string& host, int port);

/// True if `address` is one of this machine's.
bool is_here(const Address& address);

/// The port that a socket is bound to.
Result<int> port_of(int fd);

/// Where a socket of this machine finds what `listening` serves.
Result<Address> local_address_of(int listening);

/// A connected, non-blocking socket, tried once.
Result<UniqueFd> connect_to(const Address& address, Deadline deadline, const std::string& what);

/// Notices within half a minute, also while nothing is sent, that the machine at the other end is gone.
void keep_alive(int fd);

}  // namespace accord::store
