// open() creates the window and a listener; the descriptor carries the listener's name and the cookie. connect()
// meets the peers (meeting.cpp), maps each one's window, and waits until all have done the same. Then the sockets,
// the windows' files and the listener are closed: a connected group keeps its mappings, and shares the detection of a
// peer's death with all other groups (peer_channel.cpp).
//
// When the Endpoint is destroyed, it says farewell to all peers. Links share the channels, so that either may be
// destroyed first.
#include "transport/shm/shm_transport.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/text.hpp"
#include "base/wait.hpp"
#include "transport/descriptor.hpp"
#include "transport/mapped_link.hpp"
#include "transport/shm/peer_channel.hpp"
#include "transport/shm/rendezvous.hpp"
#include "transport/shm/window_segment.hpp"

namespace accord::transport {
namespace {

constexpr std::string_view kName = "shm";
constexpr DescriptorFormat kFormat{.transport = kName, .version = 2, .field_count = 2};  // socket name, cookie
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
  ShmLink(Rank peer, std::shared_ptr<PeerChannel> channel)
      : MappedLink(peer, channel->window()), channel_(std::move(channel)) {}

  PeerState peer_state() const override { return channel_->state(); }
  int liveness_fd() const override { return channel_->liveness_fd(); }
  PeerState update_peer_state() override { return channel_->update(); }

 private:
  std::shared_ptr<PeerChannel> channel_;
};

class ShmEndpoint final : public Endpoint {
 public:
  ShmEndpoint(const EndpointRequest& request, WindowSegment window, Rendezvous rendezvous)
      : request_(request),
        window_(std::make_shared<WindowSegment>(std::move(window))),
        rendezvous_(std::move(rendezvous)),
        owner_(::getpid()) {}

  ~ShmEndpoint() override {
    for (const auto& [rank, channel] : channels_) channel->say_farewell();
  }

  std::span<std::byte> window() const override { return window_->window(); }

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
    const Window mine{.bytes = request_.window_bytes, .fd = window_->fd()};
    ACCORD_ASSIGN_OR_RETURN(std::vector<Met> met, rendezvous_.meet(places, mine, deadline));
    ACCORD_RETURN_IF_ERROR(open_channels(places, met));
    ACCORD_RETURN_IF_ERROR(confirm(places, deadline));

    std::vector<std::unique_ptr<Link>> links;
    for (const MeetingPlace& place : places) {
      channels_[place.rank]->settle();
      links.push_back(std::make_unique<ShmLink>(place.rank, channels_[place.rank]));
    }
    if (channels_.size() == request_.peer_count()) {
      rendezvous_.close();
      window_->close_fd();
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

  // For every peer met, even if one channel cannot be created: each of them relies on this rank and gets a farewell.
  Status open_channels(std::span<const MeetingPlace> places, std::vector<Met>& met) {
    Status failure;
    for (std::size_t i = 0; i < met.size(); ++i) {
      const Rank rank = places[i].rank;
      Result<WindowSegment> theirs =
          WindowSegment::open(std::move(met[i].window), request_.window_bytes, request_.size);
      if (!theirs) {
        send_farewell(met[i].socket);
        failure = Status(theirs.status().code(),
                         fmt::format("the window of rank {}: {}", rank, theirs.status().message()), {rank});
        continue;
      }
      auto channel = PeerChannel::create({.self = request_.rank, .peer = rank, .mine = window_}, std::move(met[i]),
                                         std::move(*theirs));
      if (channel) {
        channels_[rank] = std::move(*channel);
      } else {
        failure = channel.status();
      }
    }
    return failure;
  }

  // No rank is connected before the others are: each confirms, and waits until all have. The words are polled all the
  // time; sockets and processes, which cost a system call per peer, only once in a while.
  Status confirm(std::span<const MeetingPlace> places, Deadline deadline) {
    for (const MeetingPlace& place : places) channels_[place.rank]->confirm();
    Waiter waiter(WaitPolicy::kYield);
    bool checks = false;
    while (true) {
      std::vector<Rank> missing, gone;
      for (const MeetingPlace& place : places) {
        const PeerChannel& channel = *channels_[place.rank];
        if (!channel.is_confirmed() || channel.state() != PeerState::kAlive) missing.push_back(place.rank);
      }
      if (missing.empty()) return {};
      if (checks) {
        std::erase_if(missing, [&](Rank rank) {
          const bool ended = channels_[rank]->update() != PeerState::kAlive;
          // A peer that left after it was connected does not make the connection fail.
          if (ended && !channels_[rank]->was_connected()) gone.push_back(rank);
          return ended;
        });
        if (!gone.empty()) return failure(StatusCode::kPeerLost, "it gave up, or its process has ended", gone);
        if (missing.empty()) return {};
        if (deadline.passed()) return failure(StatusCode::kTimeout, "it did not connect in time", missing);
      }
      checks = waiter.pause();
    }
  }

  Status failure(StatusCode code, std::string_view what, const std::vector<Rank>& ranks) const {
    return Status(
        code, fmt::format("rank {} cannot connect to {} over shm: {}", request_.rank, ranks_text(ranks), what), ranks);
  }

  EndpointRequest request_;
  std::shared_ptr<WindowSegment> window_;
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
    Result<WindowSegment> window =
        WindowSegment::create(fmt::format("accord-rank{}", request.rank), request.window_bytes, request.size);
    if (!window) return window.status().with_context("transport shm");
    Result<Rendezvous> rendezvous = Rendezvous::create(request.rank, request.size);
    if (!rendezvous) return rendezvous.status().with_context("transport shm");
    ACCORD_RETURN_IF_ERROR(check_room(request, window->fd()));
    return std::unique_ptr<Endpoint>(
        std::make_unique<ShmEndpoint>(request, std::move(*window), std::move(*rendezvous)));
  }

  // While connecting, each rank needs a socket and a window for each peer, and one more descriptor for each process
  // that it does not watch yet. Too few are reported before any rank has begun, since all ranks then learn of it.
  static Status check_room(const EndpointRequest& request, int any) {
    const std::size_t peers = request.peer_count();
    const std::size_t needed = 3 * peers - std::min(peers, watched_processes());
    std::vector<UniqueFd> room;
    while (room.size() < needed) {
      room.emplace_back(::fcntl(any, F_DUPFD_CLOEXEC, 0));
      if (!room.back().valid())
        return errno_status(errno, fmt::format("transport shm: rank {} needs {} descriptors to connect to {} peers and "
                                               "can have {}",
                                               request.rank, needed, peers, room.size() - 1));
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport() { return std::make_unique<ShmTransport>(); }

}  // namespace accord::transport
