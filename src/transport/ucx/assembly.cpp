// Every rank calls every peer and says hello; the peer answers once it is in meet() too. A peer is met when it has
// answered and its own call has arrived. A rank that has closed is therefore noticed whichever of the two came first:
// its port refuses the call, or its queue of calls is reset. Of the two connections, the one made by the higher rank
// stays.
//
// A caller is authentic if it knows the cookie of this rank's descriptor and sends its own.
#include "transport/ucx/assembly.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <optional>

#include "base/text.hpp"
#include "transport/tcp/host_addresses.hpp"
#include "transport/ucx/lifeline.hpp"

namespace accord::transport::ucx {
namespace {

constexpr int kRetryMilliseconds = 20;
constexpr std::size_t kMaxStrangers = 1024;

}  // namespace

Result<Assembly> Assembly::create(Rank rank, int size) {
  MeetingPlace place;
  place.rank = rank;
  ACCORD_ASSIGN_OR_RETURN(place.addresses, tcp::host_addresses());
  ACCORD_ASSIGN_OR_RETURN(const std::string cookie, tcp::random_cookie());
  std::copy_n(cookie.begin(), place.cookie.size(), place.cookie.begin());
  ACCORD_ASSIGN_OR_RETURN(tcp::Listener listener, tcp::listen_for_calls());
  place.port = listener.port;
  return Assembly(std::move(place), size, std::move(listener.socket));
}

void Assembly::close() {
  strangers_.clear();
  callers_.clear();
  listener_.reset();
}

Status Assembly::accept_callers() {
  while (true) {
    ACCORD_ASSIGN_OR_RETURN(UniqueFd socket, tcp::accept_call(listener_.get()));
    if (!socket.valid()) break;
    if (strangers_.size() == kMaxStrangers) strangers_.erase(strangers_.begin());
    strangers_.emplace_back(std::move(socket));
  }
  std::vector<tcp::IncomingCall> rest;
  for (tcp::IncomingCall& call : strangers_) {
    if (!call.advance()) continue;
    if (!call.has_hello()) {
      rest.push_back(std::move(call));
      continue;
    }
    std::optional<Hello> hello = decode_hello(call.hello());
    if (!hello || hello->to != place_.cookie || hello->rank < 0 || hello->rank >= size_ || hello->rank == place_.rank ||
        callers_.contains(hello->rank))
      continue;
    call.acknowledge();
    const Rank rank = hello->rank;
    callers_.emplace(rank, Caller{std::move(call), *std::move(hello)});
  }
  strangers_ = std::move(rest);
  return {};
}

Result<std::vector<Met>> Assembly::meet(std::span<const MeetingPlace> places,
                                        const std::function<Hello(Rank)>& hello_to, Deadline deadline) {
  std::vector<Peer> peers;
  for (const MeetingPlace& place : places)
    peers.push_back({place, tcp::OutgoingCall(place.addresses, place.port, encode(hello_to(place.rank)))});
  while (true) {
    Status status = accept_callers();
    std::vector<Rank> missing, gone;
    for (Peer& peer : peers) {
      if (status.ok() && !peer.call.is_acknowledged()) status = peer.call.advance();
      if (!is_connected(peer)) missing.push_back(peer.place.rank);
      if (peer.call.refused()) gone.push_back(peer.place.rank);
    }
    if (!status.ok()) return fail(peers, status.code(), status.message(), status.ranks());
    if (missing.empty()) break;
    if (!gone.empty()) return fail(peers, StatusCode::kPeerLost, "it has closed, or its process has ended", gone);
    if (deadline.passed()) return fail(peers, StatusCode::kTimeout, "it did not connect in time", missing);
    wait(peers, deadline);
  }
  for (const Peer& peer : peers) {
    if (callers_.at(peer.place.rank).hello.from == peer.place.cookie) continue;
    return fail(peers, StatusCode::kCorrupt, "another process connected in its name", {peer.place.rank});
  }
  std::vector<Met> all;
  for (Peer& peer : peers) {
    const auto caller = callers_.find(peer.place.rank);
    Met connected;
    connected.hello = std::move(caller->second.hello);
    connected.socket =
        peer.place.rank < place_.rank ? peer.call.release_socket() : caller->second.call.release_socket();
    all.push_back(std::move(connected));
    callers_.erase(caller);
  }
  return all;
}

void Assembly::wait(const std::vector<Peer>& peers, Deadline deadline) const {
  std::vector<pollfd> entries = {{listener_.get(), POLLIN, 0}};
  for (const tcp::IncomingCall& call : strangers_) entries.push_back({call.fd(), POLLIN, 0});
  for (const Peer& peer : peers)
    if (!peer.call.is_acknowledged()) entries.push_back({peer.call.fd(), peer.call.events(), 0});
  ::poll(entries.data(), entries.size(), std::min(deadline.poll_milliseconds(), kRetryMilliseconds));
}

// Peers that have met this rank, or may have by now, rely on it: this rank leaves in good order.
Status Assembly::fail(std::vector<Peer>& peers, StatusCode code, std::string_view what, std::vector<Rank> ranks) {
  for (Peer& peer : peers) {
    const auto caller = callers_.find(peer.place.rank);
    if (peer.place.rank < place_.rank) {
      if (peer.call.is_acknowledged()) send_farewell(peer.call.fd());
    } else if (caller != callers_.end()) {
      send_farewell(caller->second.call.fd());
    }
  }
  std::string message = fmt::format("rank {} cannot connect to {} over ucx: {}", place_.rank, ranks_text(ranks), what);
  return Status(code, std::move(message), std::move(ranks));
}

}  // namespace accord::transport::ucx
