// Alive -> Left when the peer's farewell arrives; Alive -> Lost when the connection ends without it. If a host
// vanishes or a link is cut, the connection does not end: calls then run into their timeouts.
//
// The connection ends with the peer's process, since no forked child of the peer holds the socket open.
#include "transport/ucx/lifeline.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace accord::transport::ucx {
namespace {

constexpr char kFarewell = 'F';

}  // namespace

void send_farewell(int socket) {
  [[maybe_unused]] const ssize_t sent = ::send(socket, &kFarewell, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

Result<std::shared_ptr<Lifeline>> Lifeline::create(UnsharedFd socket) {
  UniqueFd events(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP;
  if (!events.valid() || ::epoll_ctl(events.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) {
    const int error = errno;
    send_farewell(socket.get());
    return errno_status(error, "cannot watch a peer");
  }
  return std::shared_ptr<Lifeline>(new Lifeline(std::move(socket), std::move(events)));
}

Lifeline::Lifeline(UnsharedFd socket, UniqueFd events)
    : socket_(std::move(socket)), events_(std::move(events)), owner_(::getpid()) {}

void Lifeline::say_farewell() {
  if (::getpid() == owner_) send_farewell(socket_.get());
}

PeerState Lifeline::update() {
  if (state() != PeerState::kAlive || ::getpid() != owner_) return state();
  char byte = 0;
  const ssize_t got = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return state();
  const bool left = got == 1 && byte == kFarewell;
  if (left) ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, socket_.get(), nullptr);
  state_.store(left ? PeerState::kLeft : PeerState::kLost, std::memory_order_release);
  return state();
}

}  // namespace accord::transport::ucx
