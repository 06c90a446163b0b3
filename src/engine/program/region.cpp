// Uses mmap and munmap: weights and arenas are few and large, and malloc would keep their pages after they are freed.
#include "engine/program/region.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "base/fd.hpp"
#include "base/text.hpp"

namespace accord::engine {

Result<Region> Region::allocate(std::size_t bytes, std::string_view what) {
  if (bytes == 0) return Region();
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return errno_status(errno, fmt::format("{} of memory for {}", bytes_text(bytes), what));
  return Region({static_cast<std::byte*>(address), bytes});
}

void Region::clear() {
  if (!bytes_.empty()) ::madvise(bytes_.data(), bytes_.size(), MADV_DONTNEED);
}

Region::Region(Region&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

Region& Region::operator=(Region&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

Region::~Region() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

Status GrowingRegion::grow(std::size_t bytes) {
  if (bytes <= region_.size()) return Status();
  ACCORD_ASSIGN_OR_RETURN(Region larger, Region::allocate(bytes, what_));
  region_.clear();
  outgrown_.push_back(std::exchange(region_, std::move(larger)));
  return Status();
}

}  // namespace accord::engine
