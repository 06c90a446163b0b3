#pragma once
// A Link to a window that is mapped in this process: put, get and signal are plain memory accesses.

#include "transport/transport.hpp"

namespace accord::transport {

/// The part of a Link that every transport with mapped windows shares; a subclass adds who keeps the mapping alive and
/// what is known of the peer.
class MappedLink : public Link {
 public:
  std::byte* mapped() const final { return window_.data(); }
  /// kInvalidArgument if the bytes do not lie in the window. Cost: one memcpy.
  Status put(std::span<const std::byte> source, std::size_t offset) final;
  Status get(std::size_t offset, std::span<std::byte> destination) final;
  /// A release store; kInvalidArgument if `offset` is no multiple of 8 or lies outside.
  Status signal(std::size_t offset, std::uint64_t word) final;

 protected:
  /// `window` stays mapped as long as the subclass lives.
  MappedLink(Rank peer, std::span<std::byte> window) : Link(peer), window_(window) {}

 private:
  Status check(std::string_view operation, std::size_t offset, std::size_t bytes) const;
  std::span<std::byte> window_;
};

}  // namespace accord::transport
