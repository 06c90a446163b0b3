// All sockets are non-blocking and close on exec. A listener sets SO_REUSEADDR, so that lingering connections of an
// earlier run do not hold the port; a port with a listener is still refused. TCP keepalive detects peers that vanish
// silently (power, cable): after 10 s of silence, three probes 5 s apart.
#include "store/tcp_socket.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace accord::store {
namespace {

std::string without_brackets(const std::string& host) {
  if (host.size() < 2 || host.front() != '[' || host.back() != ']') return host;
  return host.substr(1, host.size() - 2);
}

void set_option(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

const sockaddr* socket_address(const Address& address) { return reinterpret_cast<const sockaddr*>(&address.storage); }

Address any_ipv6(int port) {
  Address address;
  auto* ipv6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  ipv6->sin6_family = AF_INET6;
  ipv6->sin6_addr = in6addr_any;
  ipv6->sin6_port = htons(static_cast<std::uint16_t>(port));
  address.size = sizeof *ipv6;
  return address;
}

Address ipv4(in_addr_t host, in_port_t port_in_network_order) {
  Address address;
  auto* ipv4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  ipv4->sin_family = AF_INET;
  ipv4->sin_addr.s_addr = htonl(host);
  ipv4->sin_port = port_in_network_order;
  address.size = sizeof *ipv4;
  return address;
}

Address with_port(Address address, int port) {
  const in_port_t number = htons(static_cast<std::uint16_t>(port));
  if (address.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = number;
  }
  return address;
}

bool is_loopback_name(const std::string& host) {
  return host == "localhost" || host == "::1" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos);
}

// The addresses to try in turn. "All addresses" is one IPv6 socket that also accepts IPv4, or IPv4 if IPv6 is
// disabled.
Result<std::vector<Address>> addresses_to_serve(const std::string& host, int port) {
  if (is_loopback_name(host)) return resolve(host, port);
  return std::vector<Address>{any_ipv6(port), ipv4(INADDR_ANY, htons(static_cast<std::uint16_t>(port)))};
}

Result<Address> address_of(int fd) {
  Address address;
  address.size = sizeof address.storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) {
    return errno_status(errno, "getsockname");
  }
  return address;
}

constexpr Duration kReuseTimeout = std::chrono::seconds(2);

// True if a connection to `address` and the port of `listening` arrives here, as through an address that a router or
// a cluster's service forwards to this machine.
bool leads_here(Address address, int listening, const std::string& url) {
  const Result<int> port = port_of(listening);
  if (!port.ok()) return false;
  address = with_port(address, *port);
  const Deadline deadline = Deadline::in(kReuseTimeout);
  const Result<UniqueFd> connection = connect_to(address, deadline, url);
  return connection.ok() && wait_readable(listening, deadline, url).ok();
}

Status check_leads_here(const std::string& host, int port, int listening) {
  const std::string url = tcp_url(host, port);
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Address> addresses, resolve(host, port));
  const auto found = [&](const Address& address) { return is_here(address) || leads_here(address, listening, url); };
  if (std::any_of(addresses.begin(), addresses.end(), found)) return Status();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{}: \"{}\" is not an address of this machine, which hosts the store of rank 0; give an "
                            "address at which the other ranks reach this machine",
                            url, host));
}

Status port_in_use(const std::string& url, int port) {
  return Status(StatusCode::kIo,
                fmt::format("{}: port {} is in use on this machine, perhaps by another job or an earlier "
                            "run; choose another one, or 0 for any that is free",
                            url, port));
}

}  // namespace

std::string tcp_url(const std::string& host, int port) {
  const bool ipv6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return ipv6 ? fmt::format("tcp://[{}]:{}", host, port) : fmt::format("tcp://{}:{}", host, port);
}

Result<std::vector<Address>> resolve(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(without_brackets(host).c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    const std::string why = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
    return Status(error == EAI_AGAIN ? StatusCode::kIo : StatusCode::kNotFound,
                  fmt::format("{}: host \"{}\" has no address: {}", tcp_url(host, port), host, why));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    Address address;
    address.size = info->ai_addrlen;
    std::memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    addresses.push_back(address);
  }
  return addresses;
}

bool is_here(const Address& address) {
  // A datagram socket can only be bound to an address of this machine; port 0 does not conflict with other sockets.
  const Address any_port = with_port(address, 0);
  const UniqueFd fd(socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd.valid() && bind(fd.get(), socket_address(any_port), any_port.size) == 0;
}

Result<UniqueFd> listen_at(const std::string& host, int port) {
  const std::string url = tcp_url(host, port);
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Address> addresses, addresses_to_serve(without_brackets(host), port));
  Status failure(StatusCode::kNotFound, url + ": no address to serve");
  for (const Address& address : addresses) {
    UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid()) {
      failure = errno_status(errno, url);
      continue;
    }
    set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (address.storage.ss_family == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(fd.get(), socket_address(address), address.size) == 0 && listen(fd.get(), SOMAXCONN) == 0) {
      ACCORD_RETURN_IF_ERROR(check_leads_here(host, port, fd.get()));
      return fd;
    }
    if (errno == EADDRINUSE) return port_in_use(url, port);
    failure = errno_status(errno, url);
  }
  return failure;
}

Result<int> port_of(int fd) {
  ACCORD_ASSIGN_OR_RETURN(const Address address, address_of(fd));
  if (address.storage.ss_family == AF_INET6) {
    return int{ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port)};
  }
  return int{ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port)};
}

Result<Address> local_address_of(int listening) {
  ACCORD_ASSIGN_OR_RETURN(const Address address, address_of(listening));
  if (address.storage.ss_family == AF_INET6) {
    const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    // ::1 may be disabled although the IPv6 socket works, so "all addresses" is reached by IPv4.
    if (IN6_IS_ADDR_UNSPECIFIED(&ipv6->sin6_addr)) return ipv4(INADDR_LOOPBACK, ipv6->sin6_port);
    return address;
  }
  const auto* any = reinterpret_cast<const sockaddr_in*>(&address.storage);
  return any->sin_addr.s_addr == htonl(INADDR_ANY) ? ipv4(INADDR_LOOPBACK, any->sin_port) : address;
}

Result<UniqueFd> connect_to(const Address& address, Deadline deadline, const std::string& what) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno_status(errno, what);
  if (connect(fd.get(), socket_address(address), address.size) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return errno_status(errno, what);
    ACCORD_RETURN_IF_ERROR(wait_writable(fd.get(), deadline, what));
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return errno_status(error, what);
  }
  set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  keep_alive(fd.get());
  return fd;
}

void keep_alive(int fd) {
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace accord::store
