// A descriptor consists of the two transports' descriptors, one per line. On every rank, connect() connects first
// inside the host, then between hosts, so that ranks cannot wait for each other in a cycle.
#include "transport/mixed_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace accord::transport {
namespace {

class MixedEndpoint final : public Endpoint {
 public:
  MixedEndpoint(Rank rank, const std::vector<int>& host_of, std::unique_ptr<Endpoint> inside,
                std::unique_ptr<Endpoint> between)
      : rank_(rank), host_of_(host_of), inside_(std::move(inside)), between_(std::move(between)) {}

  std::span<std::byte> window() const override { return inside_->window(); }
  std::string descriptor() const override { return inside_->descriptor() + '\n' + between_->descriptor(); }

  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const PeerDescriptor> peers,
                                                     Deadline deadline) override {
    std::vector<PeerDescriptor> near, far;
    for (const PeerDescriptor& peer : peers) {
      const std::size_t line = peer.descriptor.find('\n');
      if (line == std::string::npos || peer.rank < 0 || static_cast<std::size_t>(peer.rank) >= host_of_.size())
        return Status(StatusCode::kCorrupt,
                      fmt::format("rank {}: its descriptor is not one of two transports", peer.rank), {peer.rank});
      if (is_near(peer.rank)) {
        near.push_back({peer.rank, peer.descriptor.substr(0, line)});
      } else {
        far.push_back({peer.rank, peer.descriptor.substr(line + 1)});
      }
    }
    ACCORD_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Link>> near_links, inside_->connect(near, deadline));
    ACCORD_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Link>> far_links, between_->connect(far, deadline));
    std::vector<std::unique_ptr<Link>> links;
    auto next_near = near_links.begin(), next_far = far_links.begin();
    for (const PeerDescriptor& peer : peers)
      links.push_back(std::move(is_near(peer.rank) ? *next_near++ : *next_far++));
    return links;
  }

 private:
  bool is_near(Rank rank) const {
    return host_of_[static_cast<std::size_t>(rank)] == host_of_[static_cast<std::size_t>(rank_)];
  }

  const Rank rank_;
  const std::vector<int> host_of_;
  const std::unique_ptr<Endpoint> inside_;
  const std::unique_ptr<Endpoint> between_;  // destroyed first: the window belongs to the other
};

class MixedTransport final : public Transport {
 public:
  MixedTransport(Transport& inside, Transport& between, std::vector<int> host_of)
      : inside_(inside),
        between_(between),
        name_(fmt::format("{} and {}", inside.name(), between.name())),
        host_of_(std::move(host_of)) {}

  std::string_view name() const override { return name_; }
  Status viable() const override {
    ACCORD_RETURN_IF_ERROR(inside_.viable());
    return between_.viable();
  }
  bool reaches(const PlaceView& mine, const PlaceView& peer) const override {
    return inside_.reaches(mine, peer) || between_.reaches(mine, peer);
  }
  Result<std::unique_ptr<Endpoint>> open(const EndpointRequest& request) override {
    const int own_host = host_of_[static_cast<std::size_t>(request.rank)];
    const auto here = static_cast<int>(std::count(host_of_.begin(), host_of_.end(), own_host));
    EndpointRequest first = request, second = request;
    first.peers = here - 1;
    second.peers = request.size - here;
    ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> inside, inside_.open(first));
    second.window = inside->window().data();
    ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<Endpoint> between, between_.open(second));
    return std::unique_ptr<Endpoint>(
        std::make_unique<MixedEndpoint>(request.rank, host_of_, std::move(inside), std::move(between)));
  }

 private:
  Transport& inside_;
  Transport& between_;
  const std::string name_;
  const std::vector<int> host_of_;
};

}  // namespace

std::shared_ptr<Transport> make_mixed_transport(Transport& inside, Transport& between, std::vector<int> host_of) {
  return std::make_shared<MixedTransport>(inside, between, std::move(host_of));
}

}  // namespace accord::transport
