#pragma once
// Unix sockets in the abstract namespace: they have no file, and vanish with the process that made them.

#include <sys/types.h>

#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "base/fd.hpp"

namespace accord::transport {

/// 128 random bits as 32 hexadecimal digits.
Result<std::string> random_word();

/// A non-blocking listener for packets at `name`.
Result<UniqueFd> listen_at(std::string_view name);

/// Connects without blocking. The descriptor is invalid if the listener's queue is full: try again a little later.
/// kPeerLost if nobody listens at `name`.
Result<UniqueFd> connect_to(std::string_view name);

/// The next waiting connection; invalid if there is none.
Result<UniqueFd> accept_from(const UniqueFd& listener);

/// Who is on the other side: for an accepted connection who connected, else who listens.
struct SocketPeer {
  uid_t user = 0;
  pid_t process = 0;  ///< 0 if it is not visible from this process's PID namespace
};
Result<SocketPeer> peer_of(const UniqueFd& socket);

/// True if `peer` ran as the same user as this process when it connected or began to listen.
bool is_same_user(const SocketPeer& peer);

}  // namespace accord::transport
