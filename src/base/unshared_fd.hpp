#pragma once
// Sockets that forked children do not keep open.

#include "base/fd.hpp"

namespace accord {

/// Owns a socket that ends with this process, also while a forked child lives on: right after a fork, the child
/// replaces its copy by /dev/null. Programs started by exec do not inherit it if it was opened with SOCK_CLOEXEC.
/// Movable; thread-compatible.
class UnsharedFd {
 public:
  UnsharedFd() = default;
  /// Takes `socket`, which may be invalid.
  explicit UnsharedFd(UniqueFd socket);
  UnsharedFd(UnsharedFd&& other) noexcept = default;
  UnsharedFd& operator=(UnsharedFd&& other) noexcept;
  ~UnsharedFd();

  int get() const { return socket_.get(); }
  bool valid() const { return socket_.valid(); }
  /// Closes the socket.
  void reset();

 private:
  UniqueFd socket_;
};

}  // namespace accord
