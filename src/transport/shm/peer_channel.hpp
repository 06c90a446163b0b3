#pragma once
// The open connection to a connected peer: it tells whether the peer lives, and tells the peer when this rank leaves.

#include <sys/types.h>

#include <atomic>
#include <memory>

#include "accord/status.hpp"
#include "base/fd.hpp"
#include "transport/shm/process_watch.hpp"
#include "transport/transport.hpp"

namespace accord::transport {

/// Shared by a Link, which reads the peer's state, and its Endpoint, which says farewell. A forked child may hold and
/// destroy its copy without any effect on the peer or on the parent.
class PeerChannel {
 public:
  /// Takes the socket over which both sides have said hello. Costs one more descriptor; without it
  /// kResourceExhausted, and the peer is told farewell.
  static Result<std::shared_ptr<PeerChannel>> create(UniqueFd socket);

  /// The peer sees kLeft from now on. Never blocks.
  void say_farewell();
  /// From any thread. What the peer stored into this rank's window before it left is visible to who sees that it has.
  PeerState state() const { return state_.load(std::memory_order_acquire); }
  /// Readable when update() has something to say; silent for ever once the state is final.
  int liveness_fd() const { return events_.get(); }
  /// One thread at a time.
  PeerState update();

 private:
  PeerChannel(UniqueFd socket, UniqueFd events, ProcessWatch watch);
  Status listen() const;
  void become(PeerState final_state);

  const UniqueFd socket_;
  const UniqueFd events_;  // an epoll of the socket and of the peer's end
  const ProcessWatch watch_;
  const pid_t owner_;
  std::atomic<PeerState> state_{PeerState::kAlive};
};

}  // namespace accord::transport
