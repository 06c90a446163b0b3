// Sequenced packets preserve message boundaries and report the end of the other side, as a stream does. An abstract
// name is visible to every process of the network namespace (/proc/net/unix), so it is not secret: a caller must
// prove more. The queue of a listener is as long as the kernel allows, since 63 peers may arrive before the rank
// accepts them.
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
#include <utility>
#include <vector>

#include "base/hash.hpp"
#include "base/packets.hpp"

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

// Room for two descriptors: CMSG_SPACE of one int has that size anyway, and it is enough to detect that there were
// too many.
struct Control {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> bytes = {};
};

bool has_ended(int error) { return error == EPIPE || error == ECONNRESET || error == ENOTCONN; }

// The kernel cannot accept it now: its buffer is full, or this user has too many descriptors in flight.
bool is_busy(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ETOOMANYREFS; }

std::vector<UniqueFd> received_descriptors(msghdr& message) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
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
    return errno_status(errno, "cannot identify the process at the other end of a Unix socket");
  }
  return SocketPeer{.user = credentials.uid, .process = credentials.pid};
}

bool is_same_user(const SocketPeer& peer) { return peer.user == ::geteuid(); }

Result<Exchange> send_descriptor(const UniqueFd& socket, std::span<const std::byte> packet, int descriptor) {
  iovec piece = {.iov_base = const_cast<std::byte*>(packet.data()), .iov_len = packet.size()};
  Control control;
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));

  while (::sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (is_busy(errno)) return Exchange::kLater;
    if (has_ended(errno)) return Exchange::kGone;
    return errno_status(errno, "cannot send a descriptor through a Unix socket");
  }
  return Exchange::kDone;
}

Result<ReceivedDescriptor> receive_descriptor(const UniqueFd& socket, std::span<std::byte> packet) {
  iovec piece = {.iov_base = packet.data(), .iov_len = packet.size()};
  Control control;
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();

  ReceivedDescriptor received;
  const ssize_t bytes = receive_packet(socket.get(), message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (bytes < 0 && is_busy(errno)) return received;
  if (bytes <= 0) {
    received.exchange = Exchange::kGone;
    return received;
  }
  std::vector<UniqueFd> descriptors = received_descriptors(message);
  received.exchange = Exchange::kMalformed;
  const bool whole = bytes == static_cast<ssize_t>(packet.size()) && (message.msg_flags & MSG_TRUNC) == 0;
  if (!whole) return received;
  if (descriptors.empty() && (message.msg_flags & MSG_CTRUNC) != 0)
    return errno_status(EMFILE, "cannot receive a peer's descriptor");
  if (descriptors.size() != 1) return received;
  received.exchange = Exchange::kDone;
  received.descriptor = std::move(descriptors.front());
  return received;
}

}  // namespace accord::transport
