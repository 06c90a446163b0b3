#include "base/packets.hpp"

#include <cerrno>

namespace accord {

ssize_t receive_packet(int fd, msghdr& message, int flags) {
  const msghdr asked = message;
  const auto receive = [&] {
    ssize_t got = 0;
    do {
      message = asked;
      got = ::recvmsg(fd, &message, flags);
    } while (got < 0 && errno == EINTR);
    return got;
  };
  const ssize_t got = receive();
  return got == 0 ? receive() : got;
}

ssize_t receive_packet(int fd, std::span<std::byte> packet, int flags) {
  iovec piece = {.iov_base = packet.data(), .iov_len = packet.size()};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  return receive_packet(fd, message, flags);
}

}  // namespace accord
