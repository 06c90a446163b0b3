#pragma once
// The text by which the ranks of a formation name and reach each other.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "base/unshared_fd.hpp"

namespace accord::comm {

/// Where one rank can be reached, once.
struct Handle {
  std::string host;  ///< hash of topology::Place::host
  int process = 0;   ///< in its PID namespace; for messages and for the order of ranks
  std::string key;   ///< random: different for each handle
  std::uint16_t port = 0;
  std::vector<std::string> addresses;  ///< at most eight, as text

  bool operator==(const Handle&) const = default;
};

/// `accord1/HOST/PROCESS/KEY/PORT/ADDRESS,...`. The texts of one host's ranks are neighbours in alphabetical order.
std::string to_text(const Handle& handle);
/// Fails with kInvalidArgument if `text` is not a handle.
Result<Handle> parse_handle(std::string_view text);
/// `process 12 on host 1f2e...`, for messages.
std::string describe(const Handle& handle);

/// Listens for the other ranks of one formation. Forked children do not keep it open, so a call to it is refused or
/// reset as soon as the process has ended.
struct HandleListener {
  Handle handle;
  UnsharedFd socket;

  static Result<HandleListener> open();
};

}  // namespace accord::comm
