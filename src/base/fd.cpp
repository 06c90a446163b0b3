// Deadlines hold on blocking descriptors too: sockets are read and written with MSG_DONTWAIT, all other descriptors
// only after poll() reported them ready (and pipes in pieces of PIPE_BUF, the most that a ready pipe is guaranteed to
// accept). Sends never raise SIGPIPE. write_file() writes a temporary file beside the target, flushes it, renames it
// over the target and flushes the directory. After a crash either the old or the new file exists, complete.
#include "base/fd.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/text.hpp"

namespace accord {
namespace {

Status wait_ready(int fd, short events, Deadline deadline, std::string_view what) {
  for (;;) {
    pollfd entry = {fd, events, 0};
    const int ready = poll(&entry, 1, deadline.poll_milliseconds());
    if (ready < 0 && errno != EINTR) return errno_status(errno, what);
    if (ready > 0 && (entry.revents & POLLNVAL) != 0) return errno_status(EBADF, what);
    if (ready > 0) return Status();
    if (ready == 0 && deadline.passed()) {
      return Status(StatusCode::kTimeout, fmt::format("{}: the other side did not respond in time", what));
    }
  }
}

bool peer_ended(int error) { return error == EPIPE || error == ECONNRESET; }

Status peer_lost(std::string_view what) {
  return Status(StatusCode::kPeerLost, fmt::format("{}: the other side closed the connection", what));
}

// How to treat a descriptor. Determined once per call of read_all() or write_all().
enum class Kind : std::uint8_t { kSocket, kPipe, kOther };

Kind kind_of(int fd) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return Kind::kOther;  // the read or write that follows reports the error
  return S_ISSOCK(info.st_mode) ? Kind::kSocket : S_ISFIFO(info.st_mode) ? Kind::kPipe : Kind::kOther;
}

// A name that no other writer of this process uses.
std::string temporary_path(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  return fmt::format("{}.{}-{}.tmp", path, getpid(), counter.fetch_add(1, std::memory_order_relaxed));
}

Status write_and_flush(const std::string& path, std::string_view contents) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid()) return errno_status(errno, path);
  while (!contents.empty()) {
    const ssize_t written = ::write(file.get(), contents.data(), contents.size());
    if (written < 0 && errno != EINTR) return errno_status(errno, path);
    if (written > 0) contents.remove_prefix(static_cast<std::size_t>(written));
  }
  if (fsync(file.get()) != 0 && errno != EINVAL)
    return errno_status(errno, path);  // pipes and devices have nothing to flush
  return Status();
}

/// Where write_file() writes.
struct Target {
  std::string path;
  bool is_replaced = true;  ///< false: a device or a pipe, which is written in place
};

Result<Target> target_of(const std::string& given) {
  struct stat info = {};
  const bool exists = stat(given.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) return errno_status(EISDIR, given);
  if (exists && !S_ISREG(info.st_mode)) return Target{given, false};
  std::error_code broken;  // a link is followed and stays a link
  const std::filesystem::path target = std::filesystem::weakly_canonical(given, broken);
  return Target{broken ? given : target.string()};
}

std::string descriptor_limit_text() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return " in this process (raise ulimit -n)";
  return fmt::format(" in this process (raise ulimit -n, which is {})", limit.rlim_cur);
}

}  // namespace

void UniqueFd::reset(int fd) {
  if (fd_ >= 0 && fd_ != fd) close(fd_);
  fd_ = fd;
}

Status errno_status(int error, std::string_view what) {
  StatusCode code = StatusCode::kIo;
  std::string advice;
  switch (error) {
    case ENOENT: code = StatusCode::kNotFound; break;
    case EMFILE:
      code = StatusCode::kResourceExhausted;
      advice = descriptor_limit_text();
      break;
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case ENOSPC:
    case EFBIG:
    case EDQUOT: code = StatusCode::kResourceExhausted; break;
    default: break;
  }
  return Status(code, fmt::format("{}: {}{}", what, std::generic_category().message(error), advice));
}

Status wait_readable(int fd, Deadline deadline, std::string_view what) {
  return wait_ready(fd, POLLIN, deadline, what);
}

Status wait_writable(int fd, Deadline deadline, std::string_view what) {
  return wait_ready(fd, POLLOUT, deadline, what);
}

Status read_all(int fd, std::span<std::byte> bytes, Deadline deadline, std::string_view what) {
  const Kind kind = kind_of(fd);
  while (!bytes.empty()) {
    if (kind != Kind::kSocket) ACCORD_RETURN_IF_ERROR(wait_readable(fd, deadline, what));
    const ssize_t got = kind == Kind::kSocket ? recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT)
                                              : ::read(fd, bytes.data(), bytes.size());
    if (got > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    } else if (got == 0 || peer_ended(errno)) {
      return peer_lost(what);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      ACCORD_RETURN_IF_ERROR(wait_readable(fd, deadline, what));
    } else if (errno != EINTR) {
      return errno_status(errno, what);
    }
  }
  return Status();
}

Status write_all(int fd, std::span<const std::byte> bytes, Deadline deadline, std::string_view what) {
  const Kind kind = kind_of(fd);
  while (!bytes.empty()) {
    if (kind != Kind::kSocket) ACCORD_RETURN_IF_ERROR(wait_writable(fd, deadline, what));
    const std::size_t piece = kind == Kind::kPipe ? std::min<std::size_t>(bytes.size(), PIPE_BUF) : bytes.size();
    const ssize_t put = kind == Kind::kSocket ? send(fd, bytes.data(), piece, MSG_DONTWAIT | MSG_NOSIGNAL)
                                              : ::write(fd, bytes.data(), piece);
    if (put >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(put));
    } else if (peer_ended(errno)) {
      return peer_lost(what);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      ACCORD_RETURN_IF_ERROR(wait_writable(fd, deadline, what));
    } else if (errno != EINTR) {
      return errno_status(errno, what);
    }
  }
  return Status();
}

Result<std::string> read_file(const std::string& path, std::size_t limit) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return errno_status(errno, path);
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return errno_status(errno, path);
  // Files in /proc report a size of 0, so the size is only a hint; a read of 0 bytes marks the end.
  std::size_t room = std::min(limit, static_cast<std::size_t>(info.st_size)) + 1;
  std::string contents;
  std::size_t filled = 0;
  for (;;) {
    contents.resize(room);
    const ssize_t got = ::read(file.get(), contents.data() + filled, room - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(errno, path);
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
    if (filled > limit) {
      return Status(StatusCode::kInvalidArgument, fmt::format("{}: larger than {}", path, bytes_text(limit)));
    }
    if (filled == room) room = std::min(limit + 1, room + std::max<std::size_t>(room, 4096));
  }
  contents.resize(filled);
  return contents;
}

Status write_file(const std::string& given, std::string_view contents) {
  ACCORD_ASSIGN_OR_RETURN(const Target target, target_of(given));
  if (!target.is_replaced) return write_and_flush(given, contents);
  const std::string& path = target.path;
  const std::string temporary = temporary_path(path);
  const Status written = write_and_flush(temporary, contents);
  if (!written.ok() || rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(temporary.c_str());
    return written.ok() ? errno_status(error, path) : written;
  }
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const UniqueFd directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot flush directories; the rename is done anyway.
  if (directory.valid()) (void)fsync(directory.get());
  return Status();
}

Status check_writable(const std::string& given) {
  ACCORD_ASSIGN_OR_RETURN(const Target target, target_of(given));
  // Opening and closing a pipe would signal end of file to its reader.
  if (!target.is_replaced) return access(given.c_str(), W_OK) == 0 ? Status() : errno_status(errno, given);
  const std::string temporary = temporary_path(target.path);
  const UniqueFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.valid()) return errno_status(errno, target.path);
  unlink(temporary.c_str());
  return {};
}

}  // namespace accord
