// A hello is a header of fixed size and the caller's text. The answer is one byte. A host may have
// addresses that others cannot reach, or that belong to another machine from their point of view (container bridges).
// An address therefore counts only once the hello was answered; the next one is tried when an address refuses or
// stays silent, and the peer is gone when all refuse.
#include "transport/tcp/call.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/hash.hpp"
#include "transport/tcp/host_addresses.hpp"

namespace accord::transport::tcp {
namespace {

constexpr char kAcknowledged = 'H';
constexpr int kListenQueue = 1024;
constexpr std::uint64_t kMagic = 0x326f6c6c65486461;
constexpr Duration kAddressTimeout = std::chrono::seconds(1);

struct Header {
  std::uint64_t magic = kMagic;
  std::uint64_t bytes = 0;  ///< of the text
};

std::string with_header(std::string_view hello) {
  const Header header{.bytes = hello.size()};
  return std::string(reinterpret_cast<const char*>(&header), sizeof header).append(hello);
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

Result<std::string> random_cookie() {
  std::array<std::uint64_t, 2> bits = {};
  if (::getrandom(bits.data(), sizeof(bits), 0) != sizeof(bits)) return errno_status(errno, "cannot get random bits");
  return hex64(bits[0]) + hex64(bits[1]);
}

Result<Listener> listen_for_calls() {
  Listener listener;
  constexpr int kType = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  const auto bound = [&](int family, const SocketAddress& any) {
    listener.socket = UnsharedFd(UniqueFd(::socket(family, kType, 0)));
    if (!listener.socket.valid()) return false;
    if (family == AF_INET6) {
      const int off = 0;
      ::setsockopt(listener.socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    return ::bind(listener.socket.get(), reinterpret_cast<const sockaddr*>(&any.storage), any.length) == 0;
  };
  ACCORD_ASSIGN_OR_RETURN(const SocketAddress any6, socket_address("::", 0));
  ACCORD_ASSIGN_OR_RETURN(const SocketAddress any4, socket_address("0.0.0.0", 0));
  if (!bound(AF_INET6, any6) && !bound(AF_INET, any4)) return errno_status(errno, "cannot open a TCP socket");
  if (::listen(listener.socket.get(), kListenQueue) != 0) return errno_status(errno, "cannot listen on a TCP socket");
  SocketAddress own;
  own.length = sizeof own.storage;
  if (::getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.length) != 0)
    return errno_status(errno, "a TCP socket has no address");
  listener.port = ntohs(own.storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own.storage)->sin6_port
                                                          : reinterpret_cast<sockaddr_in*>(&own.storage)->sin_port);
  return listener;
}

Result<UniqueFd> accept_call(int listener) {
  UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.valid()) return socket;
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
    return errno_status(errno, "cannot accept a connection");
  return UniqueFd();  // none, or one that has ended already
}

OutgoingCall::OutgoingCall(std::vector<std::string> addresses, std::uint16_t port, std::string_view hello)
    : addresses_(std::move(addresses)), port_(port), text_(with_header(hello)) {}

// An unplugged cable or a host that is down is not a refusal: it may recover before the deadline. An address to which
// there is no way from here, such as one of IPv6 where this host has none, says nothing about the listener.
OutgoingCall::Failure OutgoingCall::failure_of(int error) {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE: return Failure::kRefused;
    case ENETUNREACH:
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT: return Failure::kUnreachable;
    default: return Failure::kOther;
  }
}

void OutgoingCall::next_address(Failure failure) {
  socket_.reset();
  at_ = (at_ + 1) % addresses_.size();
  if (failure == Failure::kOther) refusals_ = unreachable_ = 0;
  if (failure == Failure::kRefused) ++refusals_;
  if (failure == Failure::kUnreachable) ++unreachable_;
  const bool is_gone = refusals_ > 0 && refusals_ + unreachable_ >= addresses_.size();
  stage_ = is_gone ? Stage::kRefused : Stage::kDial;
}

Status OutgoingCall::dial() {
  ACCORD_ASSIGN_OR_RETURN(const SocketAddress address, socket_address(addresses_[at_], port_));
  socket_ = UnsharedFd(UniqueFd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!socket_.valid()) {
    if (errno != EAFNOSUPPORT) return errno_status(errno, "cannot open a TCP socket");
    next_address(Failure::kUnreachable);
    return {};
  }
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  sent_ = 0;
  address_deadline_ = Deadline::in(kAddressTimeout);
  stage_ = Stage::kConnecting;
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0 &&
      errno != EINPROGRESS)
    next_address(failure_of(errno));
  return {};
}

Status OutgoingCall::advance() {
  if (stage_ == Stage::kDial) ACCORD_RETURN_IF_ERROR(dial());
  if (stage_ == Stage::kConnecting) {
    pollfd entry = {socket_.get(), POLLOUT, 0};
    if (::poll(&entry, 1, 0) == 1) {
      int error = 0;
      socklen_t length = sizeof error;
      ::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) {
        next_address(failure_of(error));
      } else {
        stage_ = Stage::kSpeaking;
      }
    } else if (addresses_.size() > 1 && address_deadline_.passed()) {
      next_address(Failure::kOther);
    }
  }
  if (stage_ == Stage::kSpeaking) {
    const ssize_t sent = ::send(socket_.get(), text_.data() + sent_, text_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) sent_ += static_cast<std::size_t>(sent);
    if (sent < 0 && !would_block()) next_address(failure_of(errno));
    if (stage_ == Stage::kSpeaking && sent_ == text_.size()) stage_ = Stage::kListening;
  }
  if (stage_ == Stage::kListening) {
    char answer = 0;
    const ssize_t got = ::recv(socket_.get(), &answer, 1, MSG_DONTWAIT);
    if (got == 1 && answer == kAcknowledged) {
      stage_ = Stage::kAcknowledged;
    } else if (got >= 0 || !would_block()) {
      next_address(got >= 0 ? Failure::kRefused : failure_of(errno));
    }
  }
  return {};
}

short OutgoingCall::events() const {
  return stage_ == Stage::kConnecting || stage_ == Stage::kSpeaking ? POLLOUT : POLLIN;
}

bool IncomingCall::advance() {
  if (complete_) return true;
  std::array<char, 4096> piece;
  while (true) {
    Header header;
    if (hello_.size() >= sizeof header) {
      std::memcpy(&header, hello_.data(), sizeof header);
      if (header.magic != kMagic || header.bytes == 0 || header.bytes > kMaxHelloBytes) return false;
    }
    const std::size_t wanted = sizeof header + header.bytes - hello_.size();
    if (wanted == 0) break;
    const ssize_t got = ::recv(socket_.get(), piece.data(), std::min(wanted, piece.size()), MSG_DONTWAIT);
    if (got < 0 && would_block()) return true;
    if (got <= 0) return false;
    hello_.append(piece.data(), static_cast<std::size_t>(got));
  }
  hello_.erase(0, sizeof(Header));
  complete_ = true;
  return true;
}

void IncomingCall::acknowledge() {
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  [[maybe_unused]] const ssize_t sent = ::send(socket_.get(), &kAcknowledged, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace accord::transport::tcp
