#pragma once
// The state that two connected ranks share: whether the peer lives, and how it is notified that this rank leaves.

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
  std::shared_ptr<const WindowSegment> mine;  ///< where the peer reports its progress
};

/// Shared by a Link, which reads the peer's state, and its Endpoint, which says farewell. A forked child may hold and
/// destroy its copy without any effect on the peer or on the parent.
class PeerChannel {
 public:
  /// Takes over the result of the meeting. Costs no descriptor if both sides can watch each other's process,
  /// otherwise the socket and an epoll. Fails with kResourceExhausted if those are unavailable, and says farewell to
  /// the peer.
  static Result<std::shared_ptr<PeerChannel>> create(const PairOfRanks& ranks, Met met, WindowSegment theirs);

  std::span<std::byte> window() const { return theirs_.window(); }

  /// Reports to the peer that this rank is connected.
  void confirm();
  /// True once the peer has confirmed.
  bool is_confirmed() const { return word() != PeerWord::kNothing; }
  /// Call once all peers have confirmed: releases what only the meeting needed.
  void settle();
  /// True if the peer was settled when it left.
  bool was_connected() const { return word() == PeerWord::kLeft; }

  /// Makes the peer see kLeft. Never blocks.
  void say_farewell();
  /// May be called from any thread. A caller that sees kLeft also sees everything that the peer stored into this
  /// rank's window before it left.
  PeerState state() const {
    if (word() >= PeerWord::kGaveUp) return PeerState::kLeft;
    return state_.load(std::memory_order_acquire);
  }
  /// Becomes readable when the peer may be lost and update() should be called. -1 within one process.
  int liveness_fd() const;
  /// One thread at a time.
  PeerState update();

 private:
  PeerChannel(const PairOfRanks& ranks, Met met, WindowSegment theirs, UniqueFd events);
  PeerWord word() const {
    return static_cast<PeerWord>(ranks_.mine->word_of(ranks_.peer).load(std::memory_order_acquire));
  }
  void store_word(PeerWord word) const;
  PeerState end_in(PeerState final_state);

  const PairOfRanks ranks_;
  const WindowSegment theirs_;
  const ProcessWatch watch_;
  const bool by_process_;  // otherwise by the socket
  UniqueFd socket_;        // once settled, only if the process cannot be watched
  const UniqueFd events_;  // an epoll of the socket, for that case
  const pid_t owner_;
  bool settled_ = false;
  std::atomic<PeerState> state_{PeerState::kAlive};
};

}  // namespace accord::transport
