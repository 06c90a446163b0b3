#pragma once
// How the ranks of transport shm meet: every two of them get one socket and each other's window.

#include <span>
#include <string>
#include <vector>

#include "accord/status.hpp"
#include "base/clock.hpp"
#include "base/fd.hpp"
#include "transport/shm/hello.hpp"
#include "transport/shm/process_watch.hpp"

namespace accord::transport {

/// Where a rank can be met, as its descriptor tells.
struct MeetingPlace {
  Rank rank = 0;
  std::string socket_name;
  Cookie cookie = {};
};

/// What a rank brings along.
struct Window {
  std::size_t bytes = 0;
  int fd = -1;
};

/// A peer that both sides have said hello to.
struct Met {
  UniqueFd socket;
  UniqueFd window;
  ProcessWatch watch;       ///< of its process
  bool is_watched = false;  ///< both sides see it when the other's process ends, and need no socket for that
};

/// A connection whose rank is not known or not awaited yet.
struct Guest {
  UniqueFd socket;
  UniqueFd window;  ///< valid once `hello` came
  Hello hello;
  bool ready = true;  ///< its socket may have something to say
};

/// One rank's listener, from which on it can be met. Thread-compatible.
class Rendezvous {
 public:
  static Result<Rendezvous> create(Rank rank, int size);

  const MeetingPlace& place() const { return place_; }

  /// Meets `peers`, who meet this rank at the same time, and gives them in that order; whatever else connects is
  /// dropped. kTimeout, kPeerLost, kMismatch and kCorrupt name the ranks. After a failure whoever was met is told
  /// farewell.
  Result<std::vector<Met>> meet(std::span<const MeetingPlace> peers, const Window& window, Deadline deadline);

  /// Ends the listener: nobody new can be met.
  void close();

 private:
  Rendezvous(MeetingPlace place, int size, UniqueFd listener)
      : place_(std::move(place)), size_(size), listener_(std::move(listener)) {}

  MeetingPlace place_;
  int size_;
  UniqueFd listener_;
  std::vector<Guest> guests_;  // kept from one meet() to the next: a peer may come before it is asked for
};

}  // namespace accord::transport
