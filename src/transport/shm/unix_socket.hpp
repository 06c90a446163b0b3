#pragma once
// Unix sockets in the abstract namespace: they have no file and vanish with the process that created them.

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "base/fd.hpp"

namespace accord::transport {

/// 128 random bits as 32 hexadecimal digits.
Result<std::string> random_word();

/// Opens a non-blocking listener for packets at `name`.
Result<UniqueFd> listen_at(std::string_view name);

/// Connects without blocking. The descriptor is invalid if the listener's queue is full: try again a little later.
/// Fails with kPeerLost if nobody listens at `name`.
Result<UniqueFd> connect_to(std::string_view name);

/// The next waiting connection; invalid if there is none.
Result<UniqueFd> accept_from(const UniqueFd& listener);

/// The process on the other side: the one that connected (for an accepted connection), or the listener.
struct SocketPeer {
  uid_t user = 0;
  pid_t process = 0;  ///< 0 if it is not visible from this process's PID namespace
};
Result<SocketPeer> peer_of(const UniqueFd& socket);

/// True if `peer` ran as the same user as this process when it connected or began to listen.
bool is_same_user(const SocketPeer& peer);

/// Result of one attempt to send or receive. No call here blocks.
enum class Exchange : std::uint8_t {
  kDone,
  kLater,      ///< the socket is not ready
  kGone,       ///< the other side has closed the connection
  kMalformed,  ///< the message received is not the expected one
};

/// Sends `packet` and a copy of `descriptor`. Fails only for a reason in this process.
Result<Exchange> send_descriptor(const UniqueFd& socket, std::span<const std::byte> packet, int descriptor);

/// Receives a packet of exactly that many bytes, with one descriptor. kMalformed: another size, or no descriptor, or
/// several, which are closed. Fails with kResourceExhausted if this process has no free descriptor for the received
/// one.
struct ReceivedDescriptor {
  Exchange exchange = Exchange::kLater;
  UniqueFd descriptor;  ///< if kDone
};
Result<ReceivedDescriptor> receive_descriptor(const UniqueFd& socket, std::span<std::byte> packet);

}  // namespace accord::transport
