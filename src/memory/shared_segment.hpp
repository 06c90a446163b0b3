#pragma once
// Shared memory without a name: nothing is left behind, also after kill -9, and /dev/shm's size does not matter.

#include <cstddef>
#include <span>
#include <string_view>

#include "accord/status.hpp"
#include "base/fd.hpp"

namespace accord::memory {

/// A memfd and its mapping in this process. Pages are zero and cost memory only once touched.
class SharedSegment {
 public:
  /// Makes one of `bytes` (rounded up to pages). `name` shows in /proc/<pid>/maps.
  static Result<SharedSegment> create(std::string_view name, std::size_t bytes);
  /// Maps what a peer made; kMismatch if it is not of `bytes`.
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
