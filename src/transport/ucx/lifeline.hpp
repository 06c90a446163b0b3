#pragma once
// The open TCP connection to a connected peer. It shows whether the peer lives, and notifies the peer when this rank
// leaves.

#include <sys/types.h>

#include <atomic>
#include <memory>

#include "accord/status.hpp"
#include "base/fd.hpp"
#include "base/unshared_fd.hpp"
#include "transport/transport.hpp"

namespace accord::transport::ucx {

/// Shared by a Link, which reads the peer's state, and its Endpoint, which says farewell. A forked child may hold and
/// destroy its copy without any effect on the peer or on the parent.
class Lifeline {
 public:
  /// Takes a socket on which both sides have said hello. Costs one more descriptor.
  static Result<std::shared_ptr<Lifeline>> create(UnsharedFd socket);

  /// Makes the peer see kLeft. Never blocks.
  void say_farewell();
  PeerState state() const { return state_.load(std::memory_order_acquire); }
  /// Readable when update() has something to report; silent once the peer has left.
  int liveness_fd() const { return events_.get(); }
  /// One thread at a time.
  PeerState update();

 private:
  Lifeline(UnsharedFd socket, UniqueFd events);

  const UnsharedFd socket_;
  const UniqueFd events_;
  const pid_t owner_;
  std::atomic<PeerState> state_{PeerState::kAlive};
};

/// Sends one byte that reports an orderly departure of this side.
void send_farewell(int socket);

}  // namespace accord::transport::ucx
