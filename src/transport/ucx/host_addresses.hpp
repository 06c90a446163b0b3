#pragma once
// By which addresses other hosts may find this one.

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accord/status.hpp"

namespace accord::transport::ucx {

/// The IP addresses of this network namespace, as text, at most eight: of interfaces that are up; of those that
/// UCX_NET_DEVICES names, where it names some; 127.0.0.1 only if there is no other. Never empty.
Result<std::vector<std::string>> host_addresses();

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
};
/// kInvalidArgument if `ip` is no IPv4 or IPv6 address.
Result<SocketAddress> socket_address(const std::string& ip, std::uint16_t port);

}  // namespace accord::transport::ucx
