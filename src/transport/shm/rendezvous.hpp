#pragma once
// How the ranks of transport shm meet: every pair gets one socket and each other's window.

#include <span>
#include <string>
#include <vector>

#include "accord/status.hpp"
#include "base/clock.hpp"
#include "base/fd.hpp"
#include "transport/shm/hello.hpp"
#include "transport/shm/process_watch.hpp"

namespace accord::transport {

/// Where a rank can be met, as given by its descriptor.
struct MeetingPlace {
  Rank rank = 0;
  std::string socket_name;
  Cookie cookie = {};
};

/// The window that a rank offers.
struct Window {
  std::size_t bytes = 0;
  int fd = -1;
};

/// A peer after hellos in both directions.
struct Met {
  UniqueFd socket;
  UniqueFd window;
  ProcessWatch watch;       ///< of its process
  bool is_watched = false;  ///< both sides detect the end of the other's process, and need no socket for that
};

/// A connection whose rank is not known or not awaited yet.
struct Guest {
  UniqueFd socket;
  UniqueFd window;  ///< valid once `hello` arrived
  Hello hello;
  bool ready = true;  ///< its socket may be readable
};

/// One rank's listener; peers can meet the rank once it exists. Thread-compatible.
class Rendezvous {
 public:
  static Result<Rendezvous> create(Rank rank, int size);

  const MeetingPlace& place() const { return place_; }

  /// Meets `peers`, which meet this rank at the same time, and returns them in that order. All other connections are
  /// dropped. kTimeout, kPeerLost, kMismatch and kCorrupt name the ranks. After a failure, this rank says farewell to
  /// the peers that it has met.
  Result<std::vector<Met>> meet(std::span<const MeetingPlace> peers, const Window& window, Deadline deadline);

  /// Closes the listener: no new peer can be met.
  void close();

 private:
  Rendezvous(MeetingPlace place, int size, UniqueFd listener)
      : place_(std::move(place)), size_(size), listener_(std::move(listener)) {}

  MeetingPlace place_;
  int size_;
  UniqueFd listener_;
  std::vector<Guest> guests_;  // kept from one meet() to the next: a peer may arrive before it is expected
};

}  // namespace accord::transport
