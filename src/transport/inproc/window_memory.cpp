// One private anonymous mapping per window: page-aligned, zeroed by the kernel page by page on first touch, and not
// reserved, so that a large window that is hardly used costs next to nothing.
#include "transport/inproc/window_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "base/fd.hpp"
#include "base/text.hpp"

namespace accord::transport {

Result<WindowMemory> WindowMemory::create(std::size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (start == MAP_FAILED) return errno_status(errno, fmt::format("cannot map a window of {}", bytes_text(bytes)));
  return WindowMemory(std::span(static_cast<std::byte*>(start), bytes));
}

WindowMemory::WindowMemory(WindowMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

WindowMemory::~WindowMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace accord::transport
