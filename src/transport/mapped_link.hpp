#pragma once
// A Link to a window that is mapped in this process: put, get and signal are plain memory accesses.

#include "transport/transport.hpp"

namespace accord::transport {

/// The part of a Link shared by all transports with mapped windows. A subclass owns the mapping and tracks the peer's
/// state.
class MappedLink : public Link {
 public:
  std::byte* mapped() const final { return window_.data(); }
  /// Fails with kInvalidArgument if the bytes are not inside the window. Cost: one memcpy.
  Status put(std::span<const std::byte> source, std::size_t offset) final;
  Status get(std::size_t offset, std::span<std::byte> destination) final;
  /// A release store. Fails with kInvalidArgument if `offset` is not a multiple of 8 or is outside the window.
  Status signal(std::size_t offset, std::uint64_t word) final;

 protected:
  /// `window` must stay mapped as long as the subclass lives.
  MappedLink(Rank peer, std::span<std::byte> window) : Link(peer), window_(window) {}

 private:
  Status check(std::string_view operation, std::size_t offset, std::size_t bytes) const;
  std::span<std::byte> window_;
};

}  // namespace accord::transport
