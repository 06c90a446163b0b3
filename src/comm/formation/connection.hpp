#pragma once
// Messages of any size over a TCP connection, without blocking.

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/unshared_fd.hpp"

namespace accord::comm {

class Connection {
 public:
  /// `socket`: connected and non-blocking. Messages of more than `limit` bytes are a failure of the other side.
  Connection(UnsharedFd socket, std::size_t limit) : socket_(std::move(socket)), limit_(limit) {}

  /// Queues a message; several connections may share its bytes.
  void send(std::shared_ptr<const std::string> message);
  /// Sends what is possible now.
  void flush();
  /// Sends and receives what is possible now.
  void advance();
  /// Forgets what has arrived.
  void discard() { received_.clear(), used_ = 0; }
  /// The next message that has arrived whole.
  std::optional<std::string> next();
  /// The other side has closed the connection, or has sent what is no message. Messages that arrived before it can
  /// still be read.
  bool has_ended() const { return has_ended_; }
  bool is_flushed() const { return outgoing_.empty(); }
  /// No further message follows from this side.
  void close_outgoing();
  int fd() const { return socket_.get(); }
  short events() const;

 private:
  struct Outgoing {
    std::string header;
    std::shared_ptr<const std::string> message;
  };
  void read();

  UnsharedFd socket_;
  std::size_t limit_;
  std::string received_;
  std::size_t used_ = 0;  ///< bytes of received_ that were taken
  std::deque<Outgoing> outgoing_;
  std::size_t sent_ = 0;  ///< of the first outgoing message, with its header
  bool has_ended_ = false;
};

}  // namespace accord::comm
