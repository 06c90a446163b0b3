#pragma once
// How the ranks of transport ucx meet: every two of them get one TCP connection and each other's way over UCX.

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "transport/transport.hpp"
#include "transport/ucx/call.hpp"

namespace accord::transport::ucx {

/// Where a rank can be met, as its descriptor tells.
struct MeetingPlace {
  Rank rank = 0;
  std::vector<std::string> addresses;
  std::uint16_t port = 0;
  Cookie cookie = {};
};

/// A peer that has heard this rank and that this rank has heard.
struct Met {
  UniqueFd socket;
  Hello hello;
};

/// One rank's listener, from which on it can be met. Thread-compatible.
class Assembly {
 public:
  static Result<Assembly> create(Rank rank, int size);

  const MeetingPlace& place() const { return place_; }

  /// Meets `peers`, who meet this rank at the same time, and gives them in that order; what else connects is dropped.
  /// `hello_to(peer)` is what it says to each. kTimeout and kPeerLost name the ranks; whoever was met is told farewell then.
  Result<std::vector<Met>> meet(std::span<const MeetingPlace> peers, const std::function<Hello(Rank)>& hello_to,
                                Deadline deadline);
  /// Ends the listener: nobody new can be met.
  void close();

 private:
  struct Peer {
    const MeetingPlace& place;
    OutgoingCall call;
  };

  Assembly(MeetingPlace place, int size, UniqueFd listener)
      : place_(std::move(place)), size_(size), listener_(std::move(listener)) {}
  Status hear_callers();
  bool met(const Peer& peer) const { return peer.call.heard() && callers_.contains(peer.place.rank); }
  void wait(const std::vector<Peer>& peers, Deadline deadline) const;
  Status give_up(std::vector<Peer>& peers, StatusCode code, std::string_view what, std::vector<Rank> ranks);

  MeetingPlace place_;
  int size_;
  UniqueFd listener_;
  std::vector<IncomingCall> strangers_;   ///< that have not said yet who they are
  std::map<Rank, IncomingCall> callers_;  ///< kept from one meet() to the next: a peer may come before it is asked for
};

}  // namespace accord::transport::ucx
