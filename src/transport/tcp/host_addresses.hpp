#pragma once
// The addresses at which other hosts may find this one.

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accord/status.hpp"

namespace accord::transport::tcp {

/// Returns at most eight IP addresses of this network namespace, as text: of interfaces that are up, and only of
/// those in UCX_NET_DEVICES if it names any of them; 127.0.0.1 only if there is no other. Never empty.
Result<std::vector<std::string>> host_addresses();

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
};
/// Fails with kInvalidArgument if `ip` is not an IPv4 or IPv6 address.
Result<SocketAddress> socket_address(const std::string& ip, std::uint16_t port);

}  // namespace accord::transport::tcp
