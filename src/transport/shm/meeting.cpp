// In each pair of ranks, the higher one calls and the lower one is called, so that the pair has one socket. The
// caller connects to the other's listener, which has existed since before its descriptor was known, and says hello.
// The called rank checks the hello and answers with its own. A hello carries the cookies of both descriptors: a
// process that has not read them is a stranger and is dropped, and so is a process of another user.
//
// One loop serves all peers without blocking, so that ranks may arrive in any order:
//
//   Call   -> Reply    connected and hello sent (tried again a little later while queues are full)
//   Reply  -> Met      a hello came back
//   Reply  -> Call     the connection ended without an answer: call again, until nobody listens there any more
//   Await  -> Answer   the peer's hello arrived through the listener
//   Answer -> Met      the answer is sent
//   Answer -> Await    the caller has gone in the meantime: it calls again
//
// While a rank awaits a call, it holds a line: a connection to the other's listener that carries nothing and is cut
// when that listener closes. If a peer's listener is gone or its process has ended (reported by its pidfd, in case a
// forked child keeps the listener open), the meeting fails at once. The deadline ends it with the ranks that are
// missing.
#include "transport/shm/meeting.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "base/text.hpp"
#include "transport/shm/unix_socket.hpp"

namespace accord::transport {
namespace {

constexpr int kRetryMilliseconds = 2;
constexpr int kAcceptedAtOnce = 64;
constexpr std::size_t kSilentGuests = 256;  // in addition to the lines; beyond that the oldest is dropped

}  // namespace

Meeting::Meeting(const MeetingPlace& self, int size, const UniqueFd& listener, std::vector<Guest>& guests,
                 std::span<const MeetingPlace> peers, const Window& window)
    : self_(self), size_(size), listener_(listener), guests_(guests), window_(window) {
  for (const MeetingPlace& place : peers) {
    peers_.push_back({.place = place, .stage = place.rank < self.rank ? Stage::kCall : Stage::kAwait});
  }
  for (Guest& guest : guests_) {
    guest.ready = true;
    if (guest.window.valid()) admit(guest);
  }
}

// Peers that have met this rank, or may have by now, rely on it. If the meeting failed because of other ranks, this
// rank left in good order. A caller that has no answer yet would not understand a farewell.
Meeting::~Meeting() {
  for (const Peer& peer : peers_) {
    const bool may_count = peer.stage == Stage::kMet || peer.stage == Stage::kReply;
    if (may_count && peer.met.socket.valid()) send_farewell(peer.met.socket);
  }
}

Result<std::vector<Met>> Meeting::run(Deadline deadline) {
  for (;;) {
    ACCORD_RETURN_IF_ERROR(advance());
    std::vector<Rank> absent = missing();
    if (absent.empty()) break;
    if (std::vector<Rank> dead = ended(); !dead.empty()) {
      return failure(StatusCode::kPeerLost, "its process has ended", std::move(dead));
    }
    if (deadline.passed()) return failure(StatusCode::kTimeout, "it did not connect in time", std::move(absent));
    wait(deadline);
  }
  std::vector<Met> met;
  for (Peer& peer : peers_) met.push_back(std::move(peer.met));
  return met;
}

Status Meeting::advance() {
  if (may_have_connection_ && awaits_any()) ACCORD_RETURN_IF_ERROR(accept_guests());
  for (Guest& guest : guests_) {
    if (guest.ready && guest.socket.valid() && !guest.window.valid()) ACCORD_RETURN_IF_ERROR(receive(guest));
  }
  std::erase_if(guests_, [](const Guest& guest) { return !guest.socket.valid(); });
  for (Peer& peer : peers_) {
    if (peer.stage == Stage::kReply && peer.ready) ACCORD_RETURN_IF_ERROR(receive_reply(peer));
    if (peer.stage == Stage::kCall) ACCORD_RETURN_IF_ERROR(call(peer));
    if (peer.stage == Stage::kAnswer) ACCORD_RETURN_IF_ERROR(answer(peer));
    if (peer.stage == Stage::kAwait) ACCORD_RETURN_IF_ERROR(hold_connection(peer));
  }
  return {};
}

// Connects to the peer's listener. The descriptor is invalid if the listener's queue is full.
Result<UniqueFd> Meeting::dial(Peer& peer) {
  const Rank rank = peer.place.rank;
  Result<UniqueFd> socket = connect_to(peer.place.socket_name);
  if (socket.status().code() == StatusCode::kPeerLost) {
    return failure(StatusCode::kPeerLost, "it has closed, or its process has ended", {rank});
  }
  if (!socket) return socket.status().with_context(fmt::format("rank {} cannot connect over shm", self_.rank));
  if (!socket->valid()) return UniqueFd();
  ACCORD_ASSIGN_OR_RETURN(const SocketPeer listener, peer_of(*socket));
  if (!is_same_user(listener)) {
    return failure(
        StatusCode::kMismatch,
        fmt::format("it runs as user {}, this rank as user {}; run all ranks as one user", listener.user, ::geteuid()),
        {rank});
  }
  peer.met.watch = watch_process(listener.process);
  peer.process_ended = peer.met.watch.life == ProcessLife::kEnded;
  return socket;
}

Status Meeting::call(Peer& peer) {
  UniqueFd& socket = peer.met.socket;
  if (!socket.valid()) {
    ACCORD_ASSIGN_OR_RETURN(socket, dial(peer));
    if (!socket.valid()) return {};
  }
  ACCORD_ASSIGN_OR_RETURN(const Exchange sent, send_hello(socket, hello_to(peer), window_.fd));
  if (sent == Exchange::kDone) peer.stage = Stage::kReply;
  if (sent == Exchange::kGone) socket.reset();
  return {};
}

Status Meeting::receive_reply(Peer& peer) {
  peer.ready = false;
  ACCORD_ASSIGN_OR_RETURN(ReceivedHello reply, receive_hello(peer.met.socket));
  switch (reply.exchange) {
    case Exchange::kLater: return {};
    case Exchange::kGone:
      peer.met.socket.reset();
      peer.stage = Stage::kCall;
      return {};
    case Exchange::kMalformed: break;
    case Exchange::kDone:
      if (!is_from(reply.hello, peer.place)) break;
      peer.met.window = std::move(reply.window);
      peer.met.is_watched = peer.met.watch.suffices() && reply.hello.can_watch;
      peer.stage = Stage::kMet;
      return {};
  }
  return failure(StatusCode::kCorrupt, "another process answers at its socket", {peer.place.rank});
}

Status Meeting::hold_connection(Peer& peer) {
  if (peer.line_closed) peer.line.reset();
  peer.line_closed = false;
  if (peer.line.valid()) return {};
  ACCORD_ASSIGN_OR_RETURN(peer.line, dial(peer));
  return {};
}

Status Meeting::answer(Peer& peer) {
  if (!peer.met.watch.suffices()) {
    ACCORD_ASSIGN_OR_RETURN(const SocketPeer caller, peer_of(peer.met.socket));
    peer.met.watch = watch_process(caller.process);
  }
  ACCORD_ASSIGN_OR_RETURN(const Exchange sent, send_hello(peer.met.socket, hello_to(peer), window_.fd));
  if (sent == Exchange::kDone) {
    peer.met.is_watched = peer.met.is_watched && peer.met.watch.suffices();
    peer.stage = Stage::kMet;
    peer.line.reset();
  }
  if (sent == Exchange::kGone) {
    peer.met = {};
    peer.stage = Stage::kAwait;
  }
  return {};
}

Status Meeting::accept_guests() {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    ACCORD_ASSIGN_OR_RETURN(UniqueFd socket, accept_from(listener_));
    if (!socket.valid()) {
      may_have_connection_ = false;
      break;
    }
    Guest guest{.socket = std::move(socket), .window = {}, .hello = {}, .ready = true};
    const Result<SocketPeer> caller = peer_of(guest.socket);
    if (caller && is_same_user(*caller)) {
      guests_.push_back(std::move(guest));
    } else {
      drop(guest, caller ? fmt::format("a process of user {}", caller->user) : caller.status().message());
    }
  }
  const auto is_silent = [](const Guest& guest) { return !guest.window.valid() && !guest.ready; };
  if (static_cast<std::size_t>(std::count_if(guests_.begin(), guests_.end(), is_silent)) >
      kSilentGuests + static_cast<std::size_t>(size_)) {
    drop(*std::find_if(guests_.begin(), guests_.end(), is_silent), "a process that sent nothing");
  }
  return {};
}

Status Meeting::receive(Guest& guest) {
  guest.ready = false;
  ACCORD_ASSIGN_OR_RETURN(ReceivedHello received, receive_hello(guest.socket));
  switch (received.exchange) {
    case Exchange::kLater: break;
    case Exchange::kGone: guest.socket.reset(); break;
    case Exchange::kMalformed: drop(guest, "a process that sent no valid hello"); break;
    case Exchange::kDone:
      guest.hello = received.hello;
      guest.window = std::move(received.window);
      admit(guest);
      break;
  }
  return {};
}

void Meeting::admit(Guest& guest) {
  const Rank rank = guest.hello.rank;
  if (guest.hello.to != self_.cookie || rank <= self_.rank || rank >= size_) {
    return drop(guest, "a process that did not know the cookie of this group");
  }
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [rank](const Peer& p) { return p.place.rank == rank; });
  if (peer == peers_.end()) return;  // the peer arrived before connect() asked for it, and waits
  const bool expected = peer->stage == Stage::kAwait || peer->stage == Stage::kAnswer;
  if (!expected || !is_from(guest.hello, peer->place)) {
    return drop(guest, fmt::format("a process that claimed to be rank {}", rank));
  }
  peer->met.socket = std::move(guest.socket);
  peer->met.window = std::move(guest.window);
  peer->met.is_watched = guest.hello.can_watch;  // by the peer; answer() determines whether the reverse also holds
  peer->stage = Stage::kAnswer;
}

void Meeting::drop(Guest& guest, std::string_view why) {
  guest.socket.reset();
  guest.window.reset();
  ++strangers_;
  last_stranger_ = why;
}

void Meeting::wait(Deadline deadline) {
  std::vector<pollfd> entries;
  std::vector<bool*> ready;
  const auto watch = [&](const UniqueFd& fd, bool& flag) {
    entries.push_back({fd.get(), POLLIN, 0});
    ready.push_back(&flag);
  };
  bool again = may_have_connection_ && awaits_any();
  if (awaits_any()) watch(listener_, may_have_connection_);
  for (Guest& guest : guests_) {
    if (!guest.window.valid()) watch(guest.socket, guest.ready);
  }
  for (Peer& peer : peers_) {
    if (peer.stage == Stage::kMet) continue;
    if (peer.stage == Stage::kReply) watch(peer.met.socket, peer.ready);
    if (peer.stage == Stage::kCall || peer.stage == Stage::kAnswer) again = true;
    if (peer.stage == Stage::kAwait) {
      if (peer.line.valid()) watch(peer.line, peer.line_closed);
      again = again || !peer.line.valid();
    }
    if (peer.met.watch.process != nullptr) watch(peer.met.watch.process->ended(), peer.process_ended);
  }
  const int remaining = deadline.poll_milliseconds();
  const int longest = again ? kRetryMilliseconds : static_cast<int>(kDeathPollInterval.count());
  ::poll(entries.data(), entries.size(), std::min(remaining, longest));
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].revents != 0) *ready[i] = true;
  }
  for (Peer& peer : peers_)
    if (peer.stage != Stage::kMet && peer.met.watch.process != nullptr)
      peer.process_ended = peer.met.watch.process->has_ended();
}

bool Meeting::awaits_any() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.stage == Stage::kAwait; });
}

std::vector<Rank> Meeting::missing() const {
  std::vector<Rank> ranks;
  for (const Peer& peer : peers_) {
    if (peer.stage != Stage::kMet) ranks.push_back(peer.place.rank);
  }
  return ranks;
}

std::vector<Rank> Meeting::ended() const {
  std::vector<Rank> ranks;
  for (const Peer& peer : peers_) {
    if (peer.stage != Stage::kMet && peer.process_ended) ranks.push_back(peer.place.rank);
  }
  return ranks;
}

Hello Meeting::hello_to(const Peer& peer) const {
  return {.rank = self_.rank,
          .window_bytes = window_.bytes,
          .to = peer.place.cookie,
          .from = self_.cookie,
          .can_watch = peer.met.watch.suffices()};
}

bool Meeting::is_from(const Hello& hello, const MeetingPlace& place) const {
  return hello.rank == place.rank && hello.window_bytes == window_.bytes && hello.to == self_.cookie &&
         hello.from == place.cookie;
}

Status Meeting::failure(StatusCode code, std::string_view what, std::vector<Rank> ranks) const {
  std::string message = fmt::format("rank {} cannot connect to {} over shm: {}", self_.rank, ranks_text(ranks), what);
  if (strangers_ == 1) message += fmt::format(" (an unexpected connection was dropped: {})", last_stranger_);
  if (strangers_ > 1)
    message += fmt::format(" ({} unexpected connections were dropped, the last: {})", strangers_, last_stranger_);
  return Status(code, std::move(message), std::move(ranks));
}

}  // namespace accord::transport
