// A rank that leaves stores a word in each peer's segment, so leaving costs no message and needs no socket. Its death
// is detected through its process (process_watch.hpp), whose watch is shared by all groups with ranks in that
// process; a connected group therefore holds no descriptor of its own. If one of the two cannot watch the other's
// process (another PID namespace, a sandbox), the socket over which they met stays open instead, and if it ends
// without the word, the peer died.
//
// Alive -> Left by the word, or during the meeting by the socket's farewell; Alive -> Lost when the process or the
// socket ends without it. The word is checked last, because it may have been written just before the end. Until the
// peer has confirmed that it is connected, the socket counts in any case: a meeting that fails ends with its
// farewell.
//
// A forked child shares socket and epoll with its parent, so a farewell sent, a packet read or an event removed in
// the child would take effect for the parent. Only the owner process does any of that.
#include "transport/shm/peer_channel.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "transport/shm/hello.hpp"

namespace accord::transport {

Result<std::shared_ptr<PeerChannel>> PeerChannel::create(const PairOfRanks& ranks, Met met, WindowSegment theirs) {
  UniqueFd events;
  if (!met.is_watched) {
    events.reset(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLRDHUP;
    if (!events.valid() || ::epoll_ctl(events.get(), EPOLL_CTL_ADD, met.socket.get(), &event) != 0) {
      const int error = errno;
      send_farewell(met.socket);
      return errno_status(error, "cannot watch a peer");
    }
  }
  return std::shared_ptr<PeerChannel>(new PeerChannel(ranks, std::move(met), std::move(theirs), std::move(events)));
}

PeerChannel::PeerChannel(const PairOfRanks& ranks, Met met, WindowSegment theirs, UniqueFd events)
    : ranks_(ranks),
      theirs_(std::move(theirs)),
      watch_(std::move(met.watch)),
      by_process_(met.is_watched),
      socket_(std::move(met.socket)),
      events_(std::move(events)),
      owner_(::getpid()) {}

void PeerChannel::store_word(PeerWord word) const {
  theirs_.word_of(ranks_.self).store(static_cast<std::uint64_t>(word), std::memory_order_release);
}

void PeerChannel::confirm() { store_word(PeerWord::kConnected); }

void PeerChannel::settle() {
  settled_ = true;
  if (by_process_) socket_.reset();
}

void PeerChannel::say_farewell() {
  if (::getpid() != owner_) return;
  store_word(settled_ ? PeerWord::kLeft : PeerWord::kGaveUp);
  if (socket_.valid()) send_farewell(socket_);
}

int PeerChannel::liveness_fd() const {
  if (!by_process_) return events_.get();
  return watch_.process == nullptr ? -1 : watch_.process->ended().get();
}

PeerState PeerChannel::update() {
  if (state() != PeerState::kAlive || ::getpid() != owner_) return state();
  // The order matters: a process that had ended before the check cannot send anything after it.
  const bool process_ended = watch_.process != nullptr && watch_.process->has_ended();
  if (socket_.valid() && !(by_process_ && is_confirmed())) {
    const Received received = receive(socket_);
    if (received == Received::kFarewell) return end_in(PeerState::kLeft);
    // A peer that has confirmed no longer needs the socket and may have closed it.
    if (received == Received::kEnd && !(by_process_ && is_confirmed())) return end_in(PeerState::kLost);
  }
  return process_ended ? end_in(PeerState::kLost) : state();
}

PeerState PeerChannel::end_in(PeerState final_state) {
  if (word() < PeerWord::kGaveUp) state_.store(final_state, std::memory_order_release);
  if (events_.valid() && state() == PeerState::kLeft) ::epoll_ctl(events_.get(), EPOLL_CTL_DEL, socket_.get(), nullptr);
  return state();
}

}  // namespace accord::transport
