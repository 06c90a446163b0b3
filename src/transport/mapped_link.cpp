// Bytes are copied by memcpy. A signal is a release store, so that a thread that loads the word with acquire sees
// every byte that was put before it. On x86 both are ordinary moves; memcpy fences its own streaming stores.
#include "transport/mapped_link.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstring>

#include "base/text.hpp"

namespace accord::transport {

Status MappedLink::check(std::string_view operation, std::size_t offset, std::size_t bytes) const {
  if (offset <= window_.size() && bytes <= window_.size() - offset) [[likely]]
    return {};
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} of {} at offset {} does not fit into the window of rank {}, which has {}", operation,
                            bytes_text(bytes), offset, peer(), bytes_text(window_.size())));
}

Status MappedLink::put(std::span<const std::byte> source, std::size_t offset) {
  ACCORD_RETURN_IF_ERROR(check("put", offset, source.size()));
  if (!source.empty()) std::memcpy(window_.data() + offset, source.data(), source.size());
  return {};
}

Status MappedLink::get(std::size_t offset, std::span<std::byte> destination) {
  ACCORD_RETURN_IF_ERROR(check("get", offset, destination.size()));
  if (!destination.empty()) std::memcpy(destination.data(), window_.data() + offset, destination.size());
  return {};
}

Status MappedLink::signal(std::size_t offset, std::uint64_t word) {
  if (offset % sizeof(word) != 0) [[unlikely]] {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("signal to rank {} at offset {}: it must be a multiple of 8", peer(), offset));
  }
  ACCORD_RETURN_IF_ERROR(check("signal", offset, sizeof(word)));
  auto* flag = reinterpret_cast<std::uint64_t*>(window_.data() + offset);
  std::atomic_ref<std::uint64_t>(*flag).store(word, std::memory_order_release);
  return {};
}

}  // namespace accord::transport
