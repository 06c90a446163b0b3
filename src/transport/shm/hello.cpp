// A hello is one packet of fixed size with the window's descriptor as SCM_RIGHTS. Anything else (another size,
// another magic, no descriptor or several) is nonsense, and all descriptors that arrived with it are closed. A farewell
// is a packet of eight bytes. A connection that ends without it means that the process died.
#include "transport/shm/hello.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "base/packets.hpp"

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

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

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
  return send_descriptor(socket, std::as_bytes(std::span(&packet, 1)), window);
}

Result<ReceivedHello> receive_hello(const UniqueFd& socket) {
  Packet packet;
  ACCORD_ASSIGN_OR_RETURN(ReceivedDescriptor arrived,
                          receive_descriptor(socket, std::as_writable_bytes(std::span(&packet, 1))));
  ReceivedHello received{.exchange = arrived.exchange, .hello = {}, .window = {}};
  if (arrived.exchange != Exchange::kDone) return received;
  if (packet.magic != kHelloMagic) {
    received.exchange = Exchange::kMalformed;
    return received;
  }
  received.hello = Hello{packet.rank, packet.window_bytes, packet.to, packet.from, packet.can_watch != 0};
  received.window = std::move(arrived.descriptor);
  return received;
}

void send_farewell(const UniqueFd& socket) {
  while (::send(socket.get(), &kFarewellMagic, sizeof(kFarewellMagic), MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
         errno == EINTR) {
  }
}

Received receive(const UniqueFd& socket) {
  for (;;) {
    std::uint64_t word = 0;
    const ssize_t bytes = receive_packet(socket.get(), std::as_writable_bytes(std::span(&word, 1)), MSG_DONTWAIT);
    if (bytes == sizeof(word) && word == kFarewellMagic) return Received::kFarewell;
    if (bytes == 0) return Received::kEnd;
    if (bytes > 0) continue;
    // A reset arrives before the packets that the other side had already sent; the error is reported once, then they
    // follow.
    if (errno == ECONNRESET) continue;
    return would_block(errno) ? Received::kNothing : Received::kEnd;
  }
}

}  // namespace accord::transport
