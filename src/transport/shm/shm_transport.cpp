// open() makes the window and a listener; the descriptor carries the listener's name and the cookie. connect() meets
// the peers (meeting.cpp), maps each one's window, and keeps the socket as the sign of life (peer_channel.cpp). Window
// and listener cost a file descriptor each until every rank of the group is connected; mappings stay without one.
//
// The Endpoint says farewell to all peers when it is destroyed. Links share the channels, so that either may go first.
#include "transport/shm/shm_transport.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <map>

#include "memory/shared_segment.hpp"
#include "transport/descriptor.hpp"
#include "transport/mapped_link.hpp"
#include "transport/shm/peer_channel.hpp"
#include "transport/shm/rendezvous.hpp"

namespace accord::transport {
namespace {

using memory::SharedSegment;

constexpr std::string_view kName = "shm";
constexpr DescriptorFormat kFormat{.transport = kName, .version = 1, .field_count = 2};  // socket name, cookie
constexpr std::size_t kLongestSocketName = 64;

Result<MeetingPlace> place_of(const Descriptor& descriptor) {
  const std::vector<std::string>& fields = descriptor.fields;
  if (fields[0].size() > kLongestSocketName || fields[1].size() != kCookieBytes) {
    return Status(StatusCode::kCorrupt, fmt::format("rank {}: its descriptor is damaged", descriptor.rank),
                  {descriptor.rank});
  }
  return MeetingPlace{.rank = descriptor.rank, .socket_name = fields[0], .cookie = cookie_of(fields[1])};
}

class ShmLink final : public MappedLink {
 public:
  ShmLink(Rank peer, SharedSegment window, std::size_t window_bytes, std::shared_ptr<PeerChannel> channel)
      : MappedLink(peer, window.bytes().first(window_bytes)),
        window_(std::move(window)),
        channel_(std::move(channel)) {}

  PeerState peer_state() const override { return channel_->state(); }
  int liveness_fd() const override { return channel_->liveness_fd(); }
  PeerState update_peer_state() override { return channel_->update(); }

 private:
  SharedSegment window_;
  std::shared_ptr<PeerChannel> channel_;
};

class ShmEndpoint final : public Endpoint {
 public:
  ShmEndpoint(const EndpointRequest& request, SharedSegment window, Rendezvous rendezvous)
      : request_(request), window_(std::move(window)), rendezvous_(std::move(rendezvous)), owner_(::getpid()) {}

  ~ShmEndpoint() override {
    for (const auto& [rank, channel] : channels_) channel->say_farewell();
  }

  std::span<std::byte> window() const override { return window_.bytes().first(request_.window_bytes); }

  std::string descriptor() const override {
    const MeetingPlace& place = rendezvous_.place();
    return write_descriptor(kFormat,
                            {.rank = request_.rank,
                             .window_bytes = request_.window_bytes,
                             .fields = {place.socket_name, std::string(place.cookie.begin(), place.cookie.end())}});
  }

  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const PeerDescriptor> peers,
                                                     Deadline deadline) override {
    if (::getpid() != owner_) {
      return Status(StatusCode::kWrongState,
                    fmt::format("process {} opened this endpoint; a forked child must open its own", owner_));
    }
    ACCORD_ASSIGN_OR_RETURN(const std::vector<MeetingPlace> places, places_of(peers));
    const Window mine{.bytes = request_.window_bytes, .fd = window_.fd()};
    ACCORD_ASSIGN_OR_RETURN(std::vector<Met> met, rendezvous_.meet(places, mine, deadline));

    ACCORD_RETURN_IF_ERROR(open_channels(places, met));

    std::vector<std::unique_ptr<Link>> links;
    for (std::size_t i = 0; i < met.size(); ++i) {
      const Rank rank = places[i].rank;
      Result<SharedSegment> window = SharedSegment::open(std::move(met[i].window), request_.window_bytes);
      if (!window) {
        return Status(window.status().code(), fmt::format("the window of rank {}: {}", rank, window.status().message()),
                      {rank});
      }
      window->close_fd();
      links.push_back(std::make_unique<ShmLink>(rank, std::move(*window), request_.window_bytes, channels_[rank]));
    }
    if (channels_.size() + 1 == static_cast<std::size_t>(request_.size)) {
      rendezvous_.close();
      window_.close_fd();
    }
    return links;
  }

 private:
  Result<std::vector<MeetingPlace>> places_of(std::span<const PeerDescriptor> peers) const {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<Descriptor> descriptors, read_peers(kFormat, request_, peers));
    std::vector<MeetingPlace> places;
    for (const Descriptor& descriptor : descriptors) {
      ACCORD_ASSIGN_OR_RETURN(MeetingPlace place, place_of(descriptor));
      if (channels_.contains(place.rank)) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("rank {} is connected to rank {} already", request_.rank, place.rank));
      }
      places.push_back(std::move(place));
    }
    return places;
  }

  // To all who were met, also if one cannot be had: each of them counts on this rank, and is told farewell.
  Status open_channels(std::span<const MeetingPlace> places, std::vector<Met>& met) {
    Status failure;
    for (std::size_t i = 0; i < met.size(); ++i) {
      auto channel = PeerChannel::create(std::move(met[i].socket));
      if (channel) {
        channels_[places[i].rank] = std::move(*channel);
      } else {
        failure = channel.status();
      }
    }
    return failure;
  }

  EndpointRequest request_;
  SharedSegment window_;
  Rendezvous rendezvous_;
  pid_t owner_;
  std::map<Rank, std::shared_ptr<PeerChannel>> channels_;
};

class ShmTransport final : public Transport {
 public:
  std::string_view name() const override { return kName; }

  Status viable() const override {
    Status trial = make({.rank = 0, .size = 1, .window_bytes = 1}).status();
    if (trial.code() != StatusCode::kIo) return trial;
    return Status(StatusCode::kUnsupported, trial.message() + " (refused by this system or a sandbox)");
  }

  bool reaches(const PlaceView& mine, const PlaceView& peer) const override { return mine.host == peer.host; }

  Result<std::unique_ptr<Endpoint>> open(const EndpointRequest& request) override {
    ACCORD_RETURN_IF_ERROR(check_request(kName, request));
    return make(request);
  }

 private:
  static Result<std::unique_ptr<Endpoint>> make(const EndpointRequest& request) {
    Result<SharedSegment> window =
        SharedSegment::create(fmt::format("accord-rank{}", request.rank), request.window_bytes);
    if (!window) return window.status().with_context("transport shm");
    Result<Rendezvous> rendezvous = Rendezvous::create(request.rank, request.size);
    if (!rendezvous) return rendezvous.status().with_context("transport shm");
    return std::unique_ptr<Endpoint>(
        std::make_unique<ShmEndpoint>(request, std::move(*window), std::move(*rendezvous)));
  }
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport() { return std::make_unique<ShmTransport>(); }

}  // namespace accord::transport
