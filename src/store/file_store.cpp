// One file per key. A writer holds flock() on ".lock", writes ".writing" and renames it over the key's file. A
// reader, which takes no lock, therefore finds either the old value or the new one, complete. If a writer is killed,
// the kernel releases its lock, and at most a ".writing" is left, which the next writer overwrites. add() reads and
// writes under the same lock. A waiting get() watches the directory by inotify, and also checks from time to time,
// because inotify does not see what other machines do to a network file system, and a user may have no watch left.
//
// Keys become file names by writing every byte except letters, digits, - and _ as %XX. A name over 200 bytes is cut
// and ends in ~ and the key's SHA-256. So no key begins with a dot, and no two keys share a file.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/fd.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "store/entry.hpp"

namespace accord {
namespace {

constexpr auto kPauseWithInotify = std::chrono::milliseconds(100);
constexpr auto kPauseWithoutInotify = std::chrono::milliseconds(5);

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
  explicit FileStore(std::string directory) : directory_(std::move(directory)) {}

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
    UniqueFd file(open(path_of(".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!file.valid()) return errno_status(errno, path_of(".lock"));
    while (flock(file.get(), LOCK_EX) != 0) {
      if (errno != EINTR) return errno_status(errno, path_of(".lock"));
    }
    return file;
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
};

}  // namespace

Result<std::shared_ptr<Store>> make_file_store(const std::string& path) {
  if (path.empty()) return Status(StatusCode::kInvalidArgument, "a file store needs the path of a directory");
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (!error) std::filesystem::create_directories(absolute, error);
  if (error) return errno_status(error.value(), "file store in " + path);
  if (!std::filesystem::is_directory(absolute, error)) {
    return Status(StatusCode::kInvalidArgument, "file store in " + path + ": there is a file of that name");
  }
  return std::shared_ptr<Store>(std::make_shared<FileStore>(absolute.string()));
}

}  // namespace accord
