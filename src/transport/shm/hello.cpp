// A hello is one packet of fixed size with the window's descriptor as SCM_RIGHTS; anything else, of another size, with
// another magic, with none or several descriptors, is nonsense, and whatever descriptors came with it are closed. A
// farewell is a packet of eight bytes. An end without it means that the process died.
#include "transport/shm/hello.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

namespace accord::transport {
namespace {

constexpr std::uint64_t kHelloMagic = 0x6c65682d6d687361;     // "ashm-hel"
constexpr std::uint64_t kFarewellMagic = 0x6579622d6d687361;  // "ashm-bye"

struct Packet {
  std::uint64_t magic = kHelloMagic;
  std::uint64_t window_bytes = 0;
  std::int32_t rank = 0;
  std::uint32_t can_watch = 0;
  Cookie to = {};
  Cookie from = {};
};
static_assert(sizeof(Packet) == 24 + 2 * kCookieBytes);

// Room for two descriptors: what a CMSG_SPACE of one int holds anyway, and enough to see that there were too many.
struct Control {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> bytes = {};
};

bool has_ended(int error) { return error == EPIPE || error == ECONNRESET || error == ENOTCONN; }

// The kernel cannot take it now: its buffer is full, or too many descriptors of this user are under way.
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

Cookie cookie_of(std::string_view text) {
  Cookie cookie = {};
  std::copy_n(text.begin(), kCookieBytes, cookie.begin());
  return cookie;
}

Result<Exchange> send_hello(const UniqueFd& socket, const Hello& hello, int window) {
  Packet packet{.window_bytes = hello.window_bytes,
                .rank = hello.rank,
                .can_watch = hello.can_watch ? 1u : 0u,
                .to = hello.to,
                .from = hello.from};
  iovec piece = {.iov_base = &packet, .iov_len = sizeof(packet)};
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
  std::memcpy(CMSG_DATA(header), &window, sizeof(int));

  while (::sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (is_busy(errno)) return Exchange::kLater;
    if (has_ended(errno)) return Exchange::kGone;
    return errno_status(errno, "cannot hand over a window through a Unix socket");
  }
  return Exchange::kDone;
}

Result<ReceivedHello> receive_hello(const UniqueFd& socket) {
  Packet packet;
  iovec piece = {.iov_base = &packet, .iov_len = sizeof(packet)};
  Control control;
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();

  ReceivedHello received;
  ssize_t bytes = 0;
  while ((bytes = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {
  }
  if (bytes < 0 && is_busy(errno)) return received;
  if (bytes <= 0) {
    received.exchange = Exchange::kGone;
    return received;
  }
  std::vector<UniqueFd> descriptors = received_descriptors(message);
  received.exchange = Exchange::kNonsense;
  const bool whole = bytes == sizeof(packet) && (message.msg_flags & MSG_TRUNC) == 0;
  if (!whole || packet.magic != kHelloMagic) return received;
  if (descriptors.empty() && (message.msg_flags & MSG_CTRUNC) != 0) {
    return errno_status(EMFILE, "cannot receive a peer's window");
  }
  if (descriptors.size() != 1) return received;
  received.exchange = Exchange::kDone;
  received.hello = Hello{packet.rank, packet.window_bytes, packet.to, packet.from, packet.can_watch != 0};
  received.window = std::move(descriptors.front());
  return received;
}

void send_farewell(const UniqueFd& socket) {
  while (::send(socket.get(), &kFarewellMagic, sizeof(kFarewellMagic), MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
         errno == EINTR) {
  }
}

Heard hear(const UniqueFd& socket) {
  for (;;) {
    std::uint64_t word = 0;
    const ssize_t bytes = ::recv(socket.get(), &word, sizeof(word), MSG_DONTWAIT);
    if (bytes == sizeof(word) && word == kFarewellMagic) return Heard::kFarewell;
    if (bytes == 0) return Heard::kEnd;
    if (bytes > 0) continue;
    // A reset comes before what the other side still sent; the error is reported once, the packets follow.
    if (errno == EINTR || errno == ECONNRESET) continue;
    return is_busy(errno) ? Heard::kNothing : Heard::kEnd;
  }
}

}  // namespace accord::transport
