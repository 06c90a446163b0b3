#pragma once
// Shared memory without a name. Nothing is left behind, even after kill -9, and the size of /dev/shm does not matter.

#include <cstddef>
#include <span>
#include <string_view>

#include "accord/status.hpp"
#include "base/fd.hpp"

namespace accord::memory {

/// A memfd and its mapping in this process. Pages are zero and use memory only once touched.
class SharedSegment {
 public:
  /// Creates a segment of `bytes`, rounded up to pages. `name` shows in /proc/<pid>/maps.
  static Result<SharedSegment> create(std::string_view name, std::size_t bytes);
  /// Maps a peer's segment. Fails with kMismatch if its size is not `bytes`, rounded up to pages, or it is not
  /// sealed.
  static Result<SharedSegment> open(UniqueFd fd, std::size_t bytes);

  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  std::span<std::byte> bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  /// Closes the descriptor; the mapping stays.
  void close_fd() { fd_.reset(); }

 private:
  SharedSegment(UniqueFd fd, std::span<std::byte> bytes) : fd_(std::move(fd)), bytes_(bytes) {}
  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

}  // namespace accord::memory
