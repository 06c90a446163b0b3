#pragma once
// What two connected ranks know of each other: whether the peer lives, and how it is told that this rank leaves.

#include <sys/types.h>

#include <atomic>
#include <memory>

#include "accord/status.hpp"
#include "base/fd.hpp"
#include "transport/shm/process_watch.hpp"
#include "transport/shm/rendezvous.hpp"
#include "transport/shm/window_segment.hpp"
#include "transport/transport.hpp"

namespace accord::transport {

/// The two ends of a pair of ranks.
struct PairOfRanks {
  Rank self = 0;
  Rank peer = 0;
  std::shared_ptr<const WindowSegment> mine;  ///< where the peer says how far it has come
};

/// Shared by a Link, which reads the peer's state, and its Endpoint, which says farewell. A forked child may hold and
/// destroy its copy without any effect on the peer or on the parent.
class PeerChannel {
 public:
  /// Takes what the meeting gave. Costs no descriptor where both sides can watch each other's process, else the socket and an
  /// epoll; without those kResourceExhausted, and the peer is told farewell.
  static Result<std::shared_ptr<PeerChannel>> create(const PairOfRanks& ranks, Met met, WindowSegment theirs);

  std::span<std::byte> window() const { return theirs_.window(); }

  /// The peer can count on this rank from now on.
  void confirm();
  /// True once the peer has.
  bool is_confirmed() const { return word() != PeerWord::kNothing; }
  /// All peers have: gives back what only the meeting needed.
  void settle();
  /// True if the peer was settled when it left.
  bool was_connected() const { return word() == PeerWord::kLeft; }

  /// The peer sees kLeft from now on. Never blocks.
  void say_farewell();
  /// From any thread. What the peer stored into this rank's window before it left is visible to who sees that it has.
  PeerState state() const {
    if (word() >= PeerWord::kGaveUp) return PeerState::kLeft;
    return state_.load(std::memory_order_acquire);
  }
  /// Readable from when the peer may be lost and update() should look. -1 in one process.
  int liveness_fd() const;
  /// One thread at a time.
  PeerState update();

 private:
  PeerChannel(const PairOfRanks& ranks, Met met, WindowSegment theirs, UniqueFd events);
  PeerWord word() const {
    return static_cast<PeerWord>(ranks_.mine->word_of(ranks_.peer).load(std::memory_order_acquire));
  }
  void say(PeerWord word) const;
  PeerState end_in(PeerState final_state);

  const PairOfRanks ranks_;
  const WindowSegment theirs_;
  const ProcessWatch watch_;
  const bool by_process_;  // else by the socket
  UniqueFd socket_;        // once settled only where the process cannot be watched
  const UniqueFd events_;  // an epoll of the socket, for that case
  const pid_t owner_;
  bool settled_ = false;
  std::atomic<PeerState> state_{PeerState::kAlive};
};

}  // namespace accord::transport
