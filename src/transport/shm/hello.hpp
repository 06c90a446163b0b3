#pragma once
// The messages between two ranks of transport shm: each says hello once, with its window, and farewell at the end.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "base/fd.hpp"
#include "transport/shm/unix_socket.hpp"

namespace accord::transport {

inline constexpr std::size_t kCookieBytes = 32;
using Cookie = std::array<char, kCookieBytes>;

/// `text` as a cookie. REQUIRES: kCookieBytes bytes of text.
Cookie cookie_of(std::string_view text);

/// The sender's identity, with proof that it has read the receiver's descriptor and wrote its own.
struct Hello {
  std::int32_t rank = 0;
  std::uint64_t window_bytes = 0;
  Cookie to = {};          ///< the receiver's cookie
  Cookie from = {};        ///< the sender's cookie
  bool can_watch = false;  ///< the sender can detect the end of the other's process
};

/// Sends `hello` and a copy of the descriptor `window`, like send_descriptor().
Result<Exchange> send_hello(const UniqueFd& socket, const Hello& hello, int window);

struct ReceivedHello {
  Exchange exchange = Exchange::kLater;
  Hello hello;      ///< if kDone
  UniqueFd window;  ///< if kDone
};
/// Receives a hello, like receive_descriptor().
Result<ReceivedHello> receive_hello(const UniqueFd& socket);

/// Notifies the other side, if it still exists, that this one leaves in good order.
void send_farewell(const UniqueFd& socket);

enum class Received : std::uint8_t { kNothing, kFarewell, kEnd };
/// Reads what arrived after the hello.
Received receive(const UniqueFd& socket);

}  // namespace accord::transport
