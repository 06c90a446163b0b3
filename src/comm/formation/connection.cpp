// A message is its size, in eight bytes of this machine's order, and its bytes. Ranks of one job have one byte order.
#include "comm/formation/connection.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace accord::comm {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

bool must_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

void Connection::send(std::shared_ptr<const std::string> message) {
  const std::uint64_t bytes = message->size();
  outgoing_.push_back({std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes), std::move(message)});
}

void Connection::advance() {
  flush();
  read();
}

void Connection::flush() {
  while (!outgoing_.empty() && !has_ended_) {
    const Outgoing& first = outgoing_.front();
    const std::size_t head = first.header.size();
    const bool in_header = sent_ < head;
    const std::string_view rest = in_header ? std::string_view(first.header).substr(sent_)
                                            : std::string_view(*first.message).substr(sent_ - head);
    const ssize_t sent =
        ::send(socket_.get(), rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL | (in_header ? MSG_MORE : 0));
    if (sent < 0) {
      if (!must_wait()) outgoing_.clear();  // the other side has closed; read() finds out
      return;
    }
    sent_ += static_cast<std::size_t>(sent);
    if (sent_ < head + first.message->size()) continue;
    outgoing_.pop_front();
    sent_ = 0;
  }
}

void Connection::read() {
  std::array<char, kPieceBytes> piece;
  while (!has_ended_ && received_.size() - used_ <= limit_ + sizeof(std::uint64_t)) {
    const ssize_t got = ::recv(socket_.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (got < 0 && must_wait()) return;
    if (got <= 0) {
      has_ended_ = true;
      return;
    }
    received_.append(piece.data(), static_cast<std::size_t>(got));
  }
}

std::optional<std::string> Connection::next() {
  std::uint64_t bytes = 0;
  if (received_.size() - used_ < sizeof bytes) return std::nullopt;
  std::memcpy(&bytes, received_.data() + used_, sizeof bytes);
  if (bytes > limit_) {
    has_ended_ = true;
    return std::nullopt;
  }
  if (received_.size() - used_ - sizeof bytes < bytes) return std::nullopt;
  std::string message = received_.substr(used_ + sizeof bytes, bytes);
  used_ += sizeof bytes + bytes;
  if (used_ == received_.size() || used_ > kPieceBytes) {
    received_.erase(0, used_);
    used_ = 0;
  }
  return message;
}

void Connection::close_outgoing() { ::shutdown(socket_.get(), SHUT_WR); }

short Connection::events() const {
  return static_cast<short>((has_ended_ ? 0 : POLLIN) | (outgoing_.empty() ? 0 : POLLOUT));
}

}  // namespace accord::comm
