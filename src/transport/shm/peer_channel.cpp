// Alive -> Left when the peer's farewell comes; Alive -> Lost when the socket ends without it, or the peer's process
// does (its forked children may hold the socket open). Both are final. When the process has ended the socket is read
// first, as the farewell may be waiting there.
//
// A forked child shares the socket and the epoll with its parent, so that a farewell sent, a packet read or an event
// removed there would be the parent's: only the owner process does any of that.
#include "transport/shm/peer_channel.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "transport/shm/hello.hpp"
#include "transport/shm/unix_socket.hpp"

namespace accord::transport {

Result<std::shared_ptr<PeerChannel>> PeerChannel::create(UniqueFd socket) {
  ACCORD_ASSIGN_OR_RETURN(const SocketPeer peer, peer_of(socket));
  UniqueFd events(::epoll_create1(EPOLL_CLOEXEC));
  if (!events.valid()) {
    const int error = errno;
    send_farewell(socket);
    return errno_status(error, "cannot watch a peer");
  }
  std::shared_ptr<PeerChannel> channel(
      new PeerChannel(std::move(socket), std::move(events), watch_process(peer.process)));
  if (Status listens = channel->listen(); !listens.ok()) {
    channel->say_farewell();
    return listens;
  }
  return channel;
}

PeerChannel::PeerChannel(UniqueFd socket, UniqueFd events, ProcessWatch watch)
    : socket_(std::move(socket)), events_(std::move(events)), watch_(std::move(watch)), owner_(::getpid()) {}

Status PeerChannel::listen() const {
  std::vector<int> sources = {socket_.get()};
  if (watch_.ended != nullptr) sources.push_back(watch_.ended->get());
  for (const int fd : sources) {
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLRDHUP;
    if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errno_status(errno, "cannot watch a peer");
  }
  // A process that has ended and been buried cannot be watched; its socket is ended here in its stead.
  if (watch_.life == ProcessLife::kEnded) ::shutdown(socket_.get(), SHUT_RD);
  return {};
}

void PeerChannel::say_farewell() {
  if (::getpid() == owner_) send_farewell(socket_);
}

PeerState PeerChannel::update() {
  if (state() != PeerState::kAlive || ::getpid() != owner_) return state();
  // The order matters: a process that had ended when it was looked at can send nothing after.
  bool process_ended = false;
  if (watch_.ended != nullptr) {
    pollfd entry = {watch_.ended->get(), POLLIN, 0};
    process_ended = ::poll(&entry, 1, 0) == 1;
  }
  switch (hear(socket_)) {
    case Heard::kFarewell: become(PeerState::kLeft); break;
    case Heard::kEnd: become(PeerState::kLost); break;
    case Heard::kNothing:
      if (process_ended) become(PeerState::kLost);
      break;
  }
  return state();
}

void PeerChannel::become(PeerState final_state) {
  ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, socket_.get(), nullptr);
  if (watch_.ended != nullptr) ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, watch_.ended->get(), nullptr);
  state_.store(final_state, std::memory_order_release);
}

}  // namespace accord::transport
