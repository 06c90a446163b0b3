#pragma once
// Descriptors: the text by which ranks find each other's windows.

#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.hpp"

namespace accord::transport {

inline constexpr std::size_t kMaxDescriptorBytes = 1024;

/// The descriptors that a transport writes and accepts.
struct DescriptorFormat {
  std::string_view transport;   ///< its name
  int version = 1;              ///< version of the fields and of the transport's protocol
  std::size_t field_count = 0;  ///< number of the transport's own fields
};

/// A window as its owner describes it.
struct Descriptor {
  Rank rank = 0;
  std::size_t window_bytes = 0;
  std::vector<std::string> fields;  ///< the transport's own; not empty, without spaces
};

/// "<transport>/<version> <rank> <window bytes> <field> <field> ...".
std::string write_descriptor(const DescriptorFormat& format, const Descriptor& descriptor);

/// Fails with kCorrupt if `text` does not have that form, with kMismatch if it belongs to another transport or
/// version.
Result<Descriptor> read_descriptor(const DescriptorFormat& format, std::string_view text);

/// Reads and checks the descriptors given to Endpoint::connect(), in the order of `peers`. Fails with
/// kInvalidArgument if a rank is not in the group, is this rank, appears twice, or differs from the rank in its
/// descriptor; with kCorrupt and kMismatch as above; with kMismatch if window sizes differ. All errors name the
/// ranks.
Result<std::vector<Descriptor>> read_peers(const DescriptorFormat& format, const EndpointRequest& self,
                                           std::span<const PeerDescriptor> peers);

/// Fails with kInvalidArgument unless 0 <= rank < size and the window has at least one byte.
Status check_request(std::string_view transport, const EndpointRequest& request);

}  // namespace accord::transport
