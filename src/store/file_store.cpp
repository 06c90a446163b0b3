// One file per key. A writer holds flock() on ".lock", writes ".writing" and renames it over the key's file. A
// reader, which takes no lock, therefore finds either the old value or the new one, complete. If a writer is killed,
// the kernel releases its lock, and at most a ".writing" is left, which the next writer overwrites. add() reads and
// writes under the same lock, unless it adds 0 to a number that is there, which only reads. A process that is stopped
// while it holds the lock (SIGSTOP, a debugger) stops all writers: after kLockTimeout they fail and name it. A waiting
// get() watches the directory by inotify, and also checks from time to time,
// because inotify does not see what other machines do to a network file system, and a user may have no watch left.
//
// Keys become file names by writing every byte except letters, digits, - and _ as %XX. A name over 200 bytes is cut
// and ends in ~ and the key's SHA-256. So no key begins with a dot, and no two keys share a file.
#include "store/file_store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/fd.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "store/entry.hpp"

namespace accord {
namespace {

constexpr auto kPauseWithInotify = std::chrono::milliseconds(100);
constexpr auto kPauseWithoutInotify = std::chrono::milliseconds(5);
constexpr auto kLockTimeout = std::chrono::seconds(30);
/// Between two attempts to lock; each pause is twice as long as the last.
constexpr Duration kShortestLockPause = std::chrono::microseconds(20), kLongestLockPause = std::chrono::milliseconds(1);

std::string file_name(std::string_view key) {
  constexpr std::size_t kLongest = 200;
  std::string name;
  for (const char c : key) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    name += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  if (name.size() <= kLongest) return name;
  return name.substr(0, kLongest / 2) + "~" + sha256_hex(std::as_bytes(std::span(key)));
}

// Returns " by process 42" if the kernel says who has locked the file of `inode`, "" for one on another host.
std::string holder_of_lock(ino_t inode) {
  std::ifstream locks("/proc/locks");  // "1: FLOCK  ADVISORY  WRITE 42 fe:00:11036116 0 EOF"
  const std::string file = fmt::format(":{}", inode);
  std::string number, kind, mode, access, process, place, rest;
  while (locks >> number >> kind && std::getline(locks, rest)) {
    std::istringstream words(rest);
    if (kind == "FLOCK" && words >> mode >> access >> process >> place && place.ends_with(file))
      return " by process " + process;
  }
  return "";
}

// Wakes up when a file in a directory is replaced, or after a while.
class DirectoryWatch {
 public:
  explicit DirectoryWatch(const std::string& directory) : fd_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    if (fd_.valid() && inotify_add_watch(fd_.get(), directory.c_str(), IN_MOVED_TO) < 0) fd_.reset();
  }

  void wait(Deadline deadline) {
    const Duration longest = fd_.valid() ? Duration(kPauseWithInotify) : Duration(kPauseWithoutInotify);
    pollfd entry = {fd_.get(), POLLIN, 0};  // poll() ignores a descriptor of -1
    const Deadline end = Deadline::in(std::min(longest, deadline.remaining()));
    if (poll(&entry, 1, end.poll_milliseconds()) <= 0) return;
    alignas(inotify_event) char events[4096];
    while (read(fd_.get(), events, sizeof events) > 0) {
    }
  }

 private:
  UniqueFd fd_;
};

class FileStore final : public Store {
 public:
  FileStore(std::string directory, Duration lock_timeout)
      : directory_(std::move(directory)), lock_timeout_(lock_timeout) {}

  Status set(std::string_view key, std::string_view value) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    ACCORD_RETURN_IF_ERROR(store::check_value(key, value));
    ACCORD_ASSIGN_OR_RETURN(const UniqueFd lock, lock_for_writing());
    return replace(key, value);
  }

  Result<std::string> get(std::string_view key, Duration timeout) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    const Deadline deadline = Deadline::in(timeout);
    if (Result<std::string> value = read_value(key); value.ok() || value.status().code() != StatusCode::kNotFound) {
      return value;
    }
    DirectoryWatch watch(directory_);
    for (;;) {
      const bool last = deadline.passed();
      Result<std::string> value = read_value(key);
      if (value.ok() || value.status().code() != StatusCode::kNotFound) return value;
      if (access(directory_.c_str(), F_OK) != 0) return error(errno, key);
      if (last) return store::not_set(describe(), key, timeout);
      watch.wait(deadline);
    }
  }

  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    if (const Result<std::string> value = delta == 0 ? read_value(key) : Status(StatusCode::kNotFound, ""); value.ok())
      return store::add_to(key, &*value, 0);
    ACCORD_ASSIGN_OR_RETURN(const UniqueFd lock, lock_for_writing());
    const Result<std::string> before = read_value(key);
    if (!before.ok() && before.status().code() != StatusCode::kNotFound) return before.status();
    ACCORD_ASSIGN_OR_RETURN(const std::int64_t sum, store::add_to(key, before.ok() ? &*before : nullptr, delta));
    ACCORD_RETURN_IF_ERROR(replace(key, std::to_string(sum)));
    return sum;
  }

  Status erase(std::string_view key) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    ACCORD_ASSIGN_OR_RETURN(const UniqueFd lock, lock_for_writing());
    if (unlink(path_of(file_name(key)).c_str()) != 0 && errno != ENOENT) return error(errno, key);
    return Status();
  }

  std::string describe() const override { return "file://" + directory_; }

 private:
  std::string path_of(std::string_view name) const { return directory_ + "/" + std::string(name); }
  Status error(int number, std::string_view key) const {
    return errno_status(number, fmt::format("store {}: key {}", describe(), quoted_text(key)));
  }

  // The lock ends with the descriptor, even when the process is killed. Each call opens the file anew, so that the
  // threads of one process exclude each other too.
  Result<UniqueFd> lock_for_writing() const {
    const std::string path = path_of(".lock");
    UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!file.valid()) return errno_status(errno, path);
    Duration pause = kShortestLockPause;
    for (const Deadline deadline = Deadline::in(lock_timeout_); flock(file.get(), LOCK_EX | LOCK_NB) != 0;) {
      if (errno != EINTR && errno != EWOULDBLOCK) return errno_status(errno, path);
      if (deadline.passed()) return lock_is_held(file, path);
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestLockPause);
    }
    return file;
  }

  Status lock_is_held(const UniqueFd& file, const std::string& path) const {
    struct stat facts = {};
    const std::string holder = fstat(file.get(), &facts) == 0 ? holder_of_lock(facts.st_ino) : "";
    return Status(StatusCode::kTimeout, fmt::format("store {}: {} has been locked for {}{}", describe(), path,
                                                    duration_text(lock_timeout_), holder));
  }

  Result<std::string> read_value(std::string_view key) const {
    return read_file(path_of(file_name(key)), store::kMaxValueBytes);
  }

  // REQUIRES: the caller holds the lock.
  Status replace(std::string_view key, std::string_view value) const {
    const std::string temporary = path_of(".writing");
    const UniqueFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!file.valid()) return error(errno, key);
    ACCORD_RETURN_IF_ERROR(
        write_all(file.get(), std::as_bytes(std::span(value)), Deadline::never(), path_of(file_name(key))));
    if (rename(temporary.c_str(), path_of(file_name(key)).c_str()) != 0) return error(errno, key);
    return Status();
  }

  const std::string directory_;
  const Duration lock_timeout_;
};

}  // namespace

Result<std::shared_ptr<Store>> make_file_store(const std::string& path) {
  return store::make_file_store(path, kLockTimeout);
}

Result<std::shared_ptr<Store>> store::make_file_store(const std::string& path, Duration lock_timeout) {
  if (path.empty()) return Status(StatusCode::kInvalidArgument, "a file store needs the path of a directory");
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (!error) std::filesystem::create_directories(absolute, error);
  if (error) return errno_status(error.value(), "file store in " + path);
  if (!std::filesystem::is_directory(absolute, error)) {
    return Status(StatusCode::kInvalidArgument, "file store in " + path + ": there is a file of that name");
  }
  return std::shared_ptr<Store>(std::make_shared<FileStore>(absolute.string(), lock_timeout));
}

}  // namespace accord
