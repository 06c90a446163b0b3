// Sequenced packets keep the bounds of messages and tell of the other side's end, as a stream does. An abstract name is
// seen by every process of the network namespace (/proc/net/unix), so it is no secret: who connects has to prove
// more. The queue of a listener is as long as the kernel allows, as 63 peers may come before their host rank looks.
#include "transport/shm/unix_socket.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/hash.hpp"

namespace accord::transport {
namespace {

constexpr int kListenQueue = 4096;

struct Address {
  sockaddr_un socket = {};
  socklen_t length = 0;
};

// An abstract name begins with a zero byte and ends where the address ends. REQUIRES: name is shorter than 107 bytes.
Address address_of(std::string_view name) {
  Address address;
  address.socket.sun_family = AF_UNIX;
  std::memcpy(address.socket.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<UniqueFd> make_socket() {
  UniqueFd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.valid()) return errno_status(errno, "cannot make a Unix socket");
  return made;
}

}  // namespace

Result<std::string> random_word() {
  std::array<std::uint64_t, 2> bits = {};
  if (::getrandom(bits.data(), sizeof(bits), 0) != sizeof(bits)) return errno_status(errno, "cannot get random bits");
  return hex64(bits[0]) + hex64(bits[1]);
}

Result<UniqueFd> listen_at(std::string_view name) {
  ACCORD_ASSIGN_OR_RETURN(UniqueFd listener, make_socket());
  const Address address = address_of(name);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.socket), address.length) != 0) {
    return errno_status(errno, "cannot name a Unix socket in the abstract namespace");
  }
  if (::listen(listener.get(), kListenQueue) != 0) return errno_status(errno, "cannot listen on a Unix socket");
  return listener;
}

Result<UniqueFd> connect_to(std::string_view name) {
  ACCORD_ASSIGN_OR_RETURN(UniqueFd socket, make_socket());
  const Address address = address_of(name);
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.socket), address.length) != 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return UniqueFd();
    if (errno == ECONNREFUSED) return Status(StatusCode::kPeerLost, "nobody listens at its socket");
    return errno_status(errno, "cannot connect a Unix socket");
  }
  return socket;
}

Result<UniqueFd> accept_from(const UniqueFd& listener) {
  for (;;) {
    UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) return socket;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return UniqueFd();
    if (errno != EINTR && errno != ECONNABORTED) return errno_status(errno, "cannot accept a connection");
  }
}

Result<SocketPeer> peer_of(const UniqueFd& socket) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return errno_status(errno, "cannot tell who is at the other side of a Unix socket");
  }
  return SocketPeer{.user = credentials.uid, .process = credentials.pid};
}

bool is_same_user(const SocketPeer& peer) { return peer.user == ::geteuid(); }

}  // namespace accord::transport
