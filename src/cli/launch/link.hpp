#pragma once
// A connection between two launchers: messages both ways, and notice of the other side's end.

#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "base/fd.hpp"
#include "cli/launch/messages.hpp"

namespace accord::cli {

/// One TCP connection that carries lines. It ends at once when the other process dies, which is how launchers notice
/// each other's death: there is no heartbeat that a busy machine could miss. Not thread-safe.
class Link {
 public:
  explicit Link(UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  /// False once the other side is gone or has sent something that is not a message.
  bool alive() const { return alive_; }
  /// Queues a message and sends as much as the socket accepts; flush() sends the rest.
  void send(const Message& message);
  bool wants_to_send() const { return alive_ && !unsent_.empty(); }
  void flush();
  /// Returns the messages that have arrived, without waiting.
  std::vector<Message> receive();

 private:
  UniqueFd fd_;
  bool alive_ = true;
  std::string unsent_;
  std::string received_;
};

}  // namespace accord::cli
