#pragma once
// Descriptors: the text by which ranks find each other's windows.

#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.hpp"

namespace accord::transport {

inline constexpr std::size_t kMaxDescriptorBytes = 1024;

/// Which descriptors a transport writes and understands.
struct DescriptorFormat {
  std::string_view transport;   ///< its name
  int version = 1;              ///< of the fields and of what the transport does with them
  std::size_t field_count = 0;  ///< of the transport's own fields
};

/// A window as its owner tells of it.
struct Descriptor {
  Rank rank = 0;
  std::size_t window_bytes = 0;
  std::vector<std::string> fields;  ///< the transport's own; not empty, without spaces
};

/// "<transport>/<version> <rank> <window bytes> <field> <field> ...".
std::string write_descriptor(const DescriptorFormat& format, const Descriptor& descriptor);

/// kCorrupt if `text` is not of that form, kMismatch if it is of another transport or version.
Result<Descriptor> read_descriptor(const DescriptorFormat& format, std::string_view text);

/// Reads what Endpoint::connect() was given and checks it, in the order of `peers`. kInvalidArgument if a rank is not
/// of the group, this one, there twice, or not the one that its descriptor was made by; kCorrupt as above; kMismatch if
/// window sizes differ. All name the ranks.
Result<std::vector<Descriptor>> read_peers(const DescriptorFormat& format, const EndpointRequest& self,
                                           std::span<const PeerDescriptor> peers);

/// kInvalidArgument unless 0 <= rank < size and the window has at least a byte.
Status check_request(std::string_view transport, const EndpointRequest& request);

}  // namespace accord::transport
