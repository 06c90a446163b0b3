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

/// `text` as a cookie; REQUIRES: kCookieBytes of it.
Cookie cookie_of(std::string_view text);

/// Who speaks, and the proof that it has read the other's descriptor and wrote its own.
struct Hello {
  std::int32_t rank = 0;
  std::uint64_t window_bytes = 0;
  Cookie to = {};          ///< of the rank that is spoken to
  Cookie from = {};        ///< of the speaker
  bool can_watch = false;  ///< the speaker sees it when the other's process ends
};

/// Sends `hello` and a copy of the descriptor `window`, as send_descriptor().
Result<Exchange> send_hello(const UniqueFd& socket, const Hello& hello, int window);

struct ReceivedHello {
  Exchange exchange = Exchange::kLater;
  Hello hello;      ///< if kDone
  UniqueFd window;  ///< if kDone
};
/// As receive_descriptor().
Result<ReceivedHello> receive_hello(const UniqueFd& socket);

/// Tells the other side, if it is still there, that this one leaves in good order.
void send_farewell(const UniqueFd& socket);

enum class Heard : std::uint8_t { kNothing, kFarewell, kEnd };
/// Reads what there is after the hello.
Heard hear(const UniqueFd& socket);

}  // namespace accord::transport
