// Non-blocking reads and writes of lines. A line longer than 64 KiB is not a message of a launcher and ends the link,
// so a stranger who connects to the port costs at most that much memory.
#include "cli/launch/link.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace accord::cli {
namespace {

constexpr std::size_t kLongestLine = 64 * 1024;

bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

void Link::send(const Message& message) {
  if (!alive_) return;
  unsent_ += to_line(message);
  flush();
}

void Link::flush() {
  while (alive_ && !unsent_.empty()) {
    const ssize_t sent = ::send(fd_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (would_wait()) return;
      alive_ = false;
      return;
    }
    unsent_.erase(0, static_cast<std::size_t>(sent));
  }
}

std::vector<Message> Link::receive() {
  std::vector<Message> messages;
  std::array<char, 4096> bytes;
  while (alive_) {
    const ssize_t got = recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (got < 0 && would_wait()) break;
    if (got <= 0) {
      alive_ = false;
      break;
    }
    received_.append(bytes.data(), static_cast<std::size_t>(got));
    std::size_t end = 0;
    while ((end = received_.find('\n')) != std::string::npos) {
      Result<Message> message = from_line(std::string_view(received_).substr(0, end));
      received_.erase(0, end + 1);
      if (!message.ok()) {
        alive_ = false;
        return messages;
      }
      messages.push_back(*std::move(message));
    }
    if (received_.size() > kLongestLine) alive_ = false;
  }
  return messages;
}

}  // namespace accord::cli
