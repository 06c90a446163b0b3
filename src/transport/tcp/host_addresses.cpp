// Interfaces are in the kernel's order. Link-local IPv6 addresses are left out, because they mean nothing without the
// name of the reader's interface.
#include "transport/tcp/host_addresses.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/fd.hpp"
#include "base/text.hpp"

namespace accord::transport::tcp {
namespace {

constexpr std::size_t kMaxAddresses = 8;

std::string ip_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    ::inet_ntop(AF_INET, &v4->sin_addr, text.data(), text.size());
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (!IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) ::inet_ntop(AF_INET6, &v6->sin6_addr, text.data(), text.size());
  }
  return text.data();
}

}  // namespace

Result<std::vector<std::string>> host_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return errno_status(errno, "cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(list, ::freeifaddrs);
  const char* const devices = std::getenv("UCX_NET_DEVICES");
  const std::vector<std::string_view> wanted = split_text(devices == nullptr ? "" : devices, ',');
  std::vector<std::string> all, named;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    const std::string ip = ip_of(entry->ifa_addr);
    if (ip.empty()) continue;
    if (all.size() < kMaxAddresses) all.push_back(ip);
    const bool is_wanted = std::find(wanted.begin(), wanted.end(), entry->ifa_name) != wanted.end();
    if (is_wanted && named.size() < kMaxAddresses) named.push_back(ip);
  }
  if (!named.empty()) return named;
  if (all.empty()) all.emplace_back("127.0.0.1");
  return all;
}

Result<SocketAddress> socket_address(const std::string& ip, std::uint16_t port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET, ip.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.length = sizeof *v4;
  } else if (::inet_pton(AF_INET6, ip.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.length = sizeof *v6;
  } else {
    return Status(StatusCode::kInvalidArgument, fmt::format("{} is not an IP address", quoted_text(ip)));
  }
  return address;
}

}  // namespace accord::transport::tcp
