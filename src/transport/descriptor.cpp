// A descriptor is one line of words separated by single spaces. The first word names transport and version, so that
// ranks of different builds get an error that says so. Rank and window size follow, so that mistakes of the caller
// are found before anything is connected.
#include "transport/descriptor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <climits>
#include <set>

#include "base/text.hpp"

namespace accord::transport {
namespace {

Status not_a_descriptor(const DescriptorFormat& format, std::string_view text) {
  return Status(StatusCode::kCorrupt,
                fmt::format("its descriptor ({} bytes) is not one of transport {}", text.size(), format.transport));
}

Status check_peer_rank(const EndpointRequest& self, Rank peer, std::set<Rank>& seen) {
  if (peer < 0 || peer >= self.size) {
    return Status(StatusCode::kInvalidArgument, fmt::format("there is no rank {} in a group of {}", peer, self.size));
  }
  if (peer == self.rank) {
    return Status(StatusCode::kInvalidArgument, fmt::format("rank {} cannot connect to itself", peer));
  }
  if (!seen.insert(peer).second) {
    return Status(StatusCode::kInvalidArgument, fmt::format("rank {} is among the peers twice", peer));
  }
  return {};
}

}  // namespace

std::string write_descriptor(const DescriptorFormat& format, const Descriptor& descriptor) {
  return fmt::format("{}/{} {} {} {}", format.transport, format.version, descriptor.rank, descriptor.window_bytes,
                     fmt::join(descriptor.fields, " "));
}

Result<Descriptor> read_descriptor(const DescriptorFormat& format, std::string_view text) {
  if (text.size() > kMaxDescriptorBytes) return not_a_descriptor(format, text);
  const std::vector<std::string_view> words = split_text(text, ' ');
  if (words.size() < 3) return not_a_descriptor(format, text);

  const std::size_t slash = words[0].find('/');
  if (slash == std::string_view::npos) return not_a_descriptor(format, text);
  const std::string_view transport = words[0].substr(0, slash);
  const Result<std::int64_t> version = parse_integer(words[0].substr(slash + 1), "version");
  if (!version) return not_a_descriptor(format, text);
  if (transport != format.transport) {
    for (const Transport* known : transports()) {
      if (known->name() != transport) continue;
      return Status(StatusCode::kMismatch,
                    fmt::format("it uses transport {}, this rank {}", known->name(), format.transport));
    }
    return not_a_descriptor(format, text);
  }
  if (*version != format.version) {
    return Status(
        StatusCode::kMismatch,
        fmt::format("it speaks version {} of transport {}, this rank version {}; run one version of accord on "
                    "all ranks",
                    *version, format.transport, format.version));
  }

  const Result<std::int64_t> rank = parse_integer(words[1], "rank");
  const Result<std::int64_t> window_bytes = parse_integer(words[2], "window size");
  if (!rank || !window_bytes || *rank < 0 || *rank > INT_MAX || *window_bytes < 1 ||
      words.size() != 3 + format.field_count) {
    return not_a_descriptor(format, text);
  }
  Descriptor descriptor{static_cast<Rank>(*rank), static_cast<std::size_t>(*window_bytes), {}};
  for (const std::string_view field : std::span(words).subspan(3)) {
    if (field.empty()) return not_a_descriptor(format, text);
    descriptor.fields.emplace_back(field);
  }
  return descriptor;
}

Result<std::vector<Descriptor>> read_peers(const DescriptorFormat& format, const EndpointRequest& self,
                                           std::span<const PeerDescriptor> peers) {
  std::vector<Descriptor> read;
  std::set<Rank> seen;
  std::vector<Rank> other_size;
  std::size_t their_bytes = 0;
  for (const PeerDescriptor& peer : peers) {
    ACCORD_RETURN_IF_ERROR(check_peer_rank(self, peer.rank, seen));
    Result<Descriptor> descriptor = read_descriptor(format, peer.descriptor);
    if (!descriptor) {
      return Status(descriptor.status().code(), fmt::format("rank {}: {}", peer.rank, descriptor.status().message()),
                    {peer.rank});
    }
    if (descriptor->rank != peer.rank) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("the descriptor given for rank {} is that of rank {}", peer.rank, descriptor->rank),
                    {peer.rank});
    }
    if (descriptor->window_bytes != self.window_bytes) {
      other_size.push_back(peer.rank);
      their_bytes = descriptor->window_bytes;
    }
    read.push_back(std::move(descriptor).value());
  }
  if (!other_size.empty()) {
    return Status(StatusCode::kMismatch,
                  fmt::format("window sizes differ: rank {} has {} bytes, {} {}", self.rank, self.window_bytes,
                              ranks_text(other_size), their_bytes),
                  other_size);
  }
  return read;
}

Status check_request(std::string_view transport, const EndpointRequest& request) {
  if (request.size < 1 || request.rank < 0 || request.rank >= request.size) {
    return Status(StatusCode::kInvalidArgument, fmt::format("transport {}: there is no rank {} in a group of {}",
                                                            transport, request.rank, request.size));
  }
  if (request.window_bytes == 0) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("transport {}: the window of rank {} must have at least one byte", transport, request.rank));
  }
  return {};
}

}  // namespace accord::transport
