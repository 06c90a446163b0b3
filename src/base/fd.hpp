#pragma once
// File descriptors that close themselves, and complete reads and writes.

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

/// Returns `what: No such file or directory` with the code that fits errno (kNotFound, kResourceExhausted, else kIo).
Status errno_status(int error, std::string_view what);

/// Blocks until `fd` is readable (or at end of file). Fails with kTimeout at the deadline.
Status wait_readable(int fd, Deadline deadline, std::string_view what);
Status wait_writable(int fd, Deadline deadline, std::string_view what);

/// Reads or writes all bytes, on non-blocking descriptors too. Fails with kPeerLost if the other side ends first,
/// with kTimeout at the deadline.
Status read_all(int fd, std::span<std::byte> bytes, Deadline deadline, std::string_view what);
Status write_all(int fd, std::span<const std::byte> bytes, Deadline deadline, std::string_view what);

/// Returns the contents of a file, or an error that names the file. Fails with kInvalidArgument if it is larger than
/// `limit` bytes.
Result<std::string> read_file(const std::string& path, std::size_t limit = std::size_t{1} << 30);
/// Writes `path` atomically: a temporary file, fsync, rename. Follows a link and replaces its target, not the link.
/// Devices and pipes are written in place.
Status write_file(const std::string& path, std::string_view contents);
/// Returns the error that write_file() would return now, as far as it can be known before writing (folder,
/// permissions). Changes nothing.
Status check_writable(const std::string& path);

}  // namespace accord
