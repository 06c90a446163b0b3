#pragma once
// File descriptors that close themselves, and reads and writes that finish.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "accord/status.hpp"
#include "base/clock.hpp"

namespace accord {

/// Owns one file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset(int fd = -1);
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// `what: No such file or directory`, with the code that fits errno (kNotFound, kResourceExhausted, else kIo).
Status errno_status(int error, std::string_view what);

/// Waits until `fd` is readable (or has ended); kTimeout at the deadline.
Status wait_readable(int fd, Deadline deadline, std::string_view what);
Status wait_writable(int fd, Deadline deadline, std::string_view what);

/// Reads or writes all of it, also on non-blocking descriptors; kPeerLost if the other side ends first, kTimeout.
Status read_all(int fd, std::span<std::byte> bytes, Deadline deadline, std::string_view what);
Status write_all(int fd, std::span<const std::byte> bytes, Deadline deadline, std::string_view what);

/// The whole of a file, or an error that names it. `limit`: a larger file is kInvalidArgument.
Result<std::string> read_file(const std::string& path, std::size_t limit = std::size_t{1} << 30);
/// Writes `path` so that it is there as a whole or not at all: a temporary file, fsync, rename. What a link leads to is written, not
/// the link; devices and pipes are written to.
Status write_file(const std::string& path, std::string_view contents);
/// What write_file() would say now, where that shows before anything is written: the folder, permissions. Leaves all as it is.
Status check_writable(const std::string& path);

}  // namespace accord
