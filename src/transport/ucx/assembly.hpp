#pragma once
// How the ranks of transport ucx meet: every pair gets one TCP connection and each other's address in UCX.

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "transport/tcp/call.hpp"
#include "transport/transport.hpp"
#include "transport/ucx/hello.hpp"

namespace accord::transport::ucx {

/// Where a rank can be met, as given by its descriptor.
struct MeetingPlace {
  Rank rank = 0;
  std::vector<std::string> addresses;
  std::uint16_t port = 0;
  Cookie cookie = {};
};

/// A peer after hellos in both directions.
struct Met {
  UnsharedFd socket;
  Hello hello;
};

/// One rank's listener; peers can meet the rank once it exists. Thread-compatible.
class Assembly {
 public:
  static Result<Assembly> create(Rank rank, int size);

  const MeetingPlace& place() const { return place_; }

  /// Meets `peers`, which meet this rank at the same time, and returns them in that order. All other connections are
  /// dropped. `hello_to(peer)` gives the hello for each peer. kTimeout and kPeerLost name the ranks; this rank then
  /// says farewell to the peers that it has met.
  Result<std::vector<Met>> meet(std::span<const MeetingPlace> peers, const std::function<Hello(Rank)>& hello_to,
                                Deadline deadline);
  /// Closes the listener: no new peer can be met.
  void close();

 private:
  struct Peer {
    const MeetingPlace& place;
    tcp::OutgoingCall call;
  };
  /// A call whose hello was right.
  struct Caller {
    tcp::IncomingCall call;
    Hello hello;
  };

  Assembly(MeetingPlace place, int size, UnsharedFd listener)
      : place_(std::move(place)), size_(size), listener_(std::move(listener)) {}
  Status accept_callers();
  bool is_connected(const Peer& peer) const {
    return peer.call.is_acknowledged() && callers_.contains(peer.place.rank);
  }
  void wait(const std::vector<Peer>& peers, Deadline deadline) const;
  Status fail(std::vector<Peer>& peers, StatusCode code, std::string_view what, std::vector<Rank> ranks);

  MeetingPlace place_;
  int size_;
  UnsharedFd listener_;
  std::vector<tcp::IncomingCall> strangers_;  ///< callers that have not identified themselves yet
  /// kept from one meet() to the next: a peer may arrive before it is expected
  std::map<Rank, Caller> callers_;
};

}  // namespace accord::transport::ucx
