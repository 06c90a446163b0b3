// open() creates the window and a listener; the descriptor contains the listener's address and a cookie. connect()
// meets the peers (assembly.cpp), opens a stream to each (stream.cpp), and keeps the connection as a sign of life
// (lifeline.cpp).
//
// A destroyed endpoint first asks every peer whether it has received everything, and waits for the answers: a rank's
// writes take effect even if it leaves right afterwards. Then it says farewell.
#include "transport/ucx/ucx_transport.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <thread>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "memory/shared_segment.hpp"
#include "transport/descriptor.hpp"
#include "transport/ucx/assembly.hpp"
#include "transport/ucx/lifeline.hpp"
#include "transport/ucx/stream.hpp"

namespace accord::transport::ucx {
namespace {

using memory::SharedSegment;

constexpr std::string_view kName = "ucx";
// addresses, port, cookie, sum
constexpr DescriptorFormat kFormat{.transport = kName, .version = 1, .field_count = 4};
constexpr Duration kLeaveTimeout = std::chrono::seconds(2);

/// Checksum of everything in a descriptor except the sum itself.
std::string sum_of(Rank rank, std::size_t window_bytes, std::string_view addresses, std::string_view port,
                   std::string_view cookie) {
  const std::string text = fmt::format("{} {} {} {} {}", rank, window_bytes, addresses, port, cookie);
  return hex64(xxh3(std::as_bytes(std::span(text))));
}

Result<MeetingPlace> place_of(const Descriptor& descriptor) {
  const std::vector<std::string>& fields = descriptor.fields;
  const Status damaged(StatusCode::kCorrupt, fmt::format("rank {}: its descriptor is damaged", descriptor.rank),
                       {descriptor.rank});
  if (fields[3] != sum_of(descriptor.rank, descriptor.window_bytes, fields[0], fields[1], fields[2])) return damaged;
  const Result<std::int64_t> port = parse_integer(fields[1], "port");
  MeetingPlace place;
  place.rank = descriptor.rank;
  if (!port || *port < 1 || *port > 65535 || fields[2].size() != place.cookie.size()) return damaged;
  place.port = static_cast<std::uint16_t>(*port);
  std::copy_n(fields[2].begin(), place.cookie.size(), place.cookie.begin());
  for (const std::string_view address : split_text(fields[0], ',')) place.addresses.emplace_back(address);
  return place;
}

class UcxLink final : public Link, public RemoteWriter {
 public:
  UcxLink(Rank peer, std::size_t window_bytes, std::shared_ptr<Stream> stream, std::shared_ptr<Lifeline> lifeline)
      : Link(peer), window_bytes_(window_bytes), stream_(std::move(stream)), lifeline_(std::move(lifeline)) {}

  std::byte* mapped() const override { return nullptr; }
  RemoteWriter* remote() override { return this; }

  Status put(std::span<const std::byte> source, std::size_t offset) override {
    ACCORD_RETURN_IF_ERROR(check("put", offset, source.size()));
    stream_->write(source, offset);
    return {};
  }
  Status get(std::size_t offset, std::span<std::byte> destination) override {
    ACCORD_RETURN_IF_ERROR(check("get", offset, destination.size()));
    const std::uint64_t number = stream_->begin_read(offset, destination);
    while (true) {
      ACCORD_ASSIGN_OR_RETURN(const bool ended, read_ended(number));
      if (ended) return {};
      if (update_peer_state() != PeerState::kAlive) {
        stream_->abandon_read(number);
        return check("get", offset, destination.size());
      }
      if (!stream_->worker().progress()) std::this_thread::yield();
    }
  }
  Status signal(std::size_t offset, std::uint64_t word) override {
    if (offset % sizeof(word) != 0) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("signal to rank {} at offset {}: it must be a multiple of 8", peer(), offset));
    }
    ACCORD_RETURN_IF_ERROR(check("signal", offset, sizeof(word)));
    stream_->write_word(word, offset);
    stream_->flush();
    return {};
  }

  std::size_t write_some(std::span<const std::byte> source, std::size_t offset) override {
    return stream_->write_some(source, offset);
  }
  void write_note(std::span<const std::byte> source, std::size_t offset, std::uint64_t word,
                  std::size_t word_offset) override {
    stream_->write_note(source, offset, word, word_offset);
  }
  void write_word(std::uint64_t word, std::size_t offset) override { stream_->write_word(word, offset); }
  void write_packets(std::span<const std::byte> source, std::size_t offset, const PacketLines& lines,
                     std::uint64_t word) override {
    stream_->write_packets(source, offset, lines, word);
  }
  void flush() override { stream_->flush(); }
  void flush_notes() override { stream_->flush_notes(); }
  void progress() override { stream_->worker().progress(); }
  bool has_room() const override { return stream_->has_room(); }
  std::uint64_t begin_read(std::size_t offset, std::span<std::byte> destination) override {
    return stream_->begin_read(offset, destination);
  }
  Result<bool> read_ended(std::uint64_t number) override {
    Result<bool> ended = stream_->read_ended(number);
    if (!ended.ok()) return named(ended.status());
    return ended;
  }
  void abandon_read(std::uint64_t number) override { stream_->abandon_read(number); }

  PeerState peer_state() const override { return lifeline_->state(); }
  int liveness_fd() const override { return lifeline_->liveness_fd(); }
  PeerState update_peer_state() override { return lifeline_->update(); }

 private:
  Status named(const Status& status) const {
    if (status.ok()) return status;
    return Status(status.code(), fmt::format("rank {} over ucx: {}", peer(), status.message()), {peer()});
  }
  Status check(std::string_view operation, std::size_t offset, std::size_t bytes) const {
    if (offset > window_bytes_ || bytes > window_bytes_ - offset) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{} of {} at offset {} does not fit into the window of rank {}, which has {}",
                                operation, bytes_text(bytes), offset, peer(), bytes_text(window_bytes_)));
    }
    if (lifeline_->state() != PeerState::kAlive)
      return Status(StatusCode::kPeerLost, fmt::format("{}: rank {} has left or died", operation, peer()), {peer()});
    return named(stream_->state());
  }

  const std::size_t window_bytes_;
  const std::shared_ptr<Stream> stream_;
  const std::shared_ptr<Lifeline> lifeline_;
};

class UcxEndpoint final : public Endpoint {
 public:
  UcxEndpoint(const EndpointRequest& request, std::optional<SharedSegment> memory, Worker& worker, Assembly assembly)
      : request_(request),
        memory_(std::move(memory)),
        window_(memory_ ? memory_->bytes().first(request.window_bytes)
                        : std::span(request.window, request.window_bytes)),
        worker_(worker),
        assembly_(std::move(assembly)),
        owner_(::getpid()) {}

  ~UcxEndpoint() override {
    if (::getpid() != owner_) return;
    for (const auto& [rank, peer] : peers_)
      if (peer.lifeline->update() == PeerState::kAlive) peer.stream->request_acknowledgement();
    const Deadline deadline = Deadline::in(kLeaveTimeout);
    const auto awaits_acknowledgement = [](const auto& entry) {
      const Peer& peer = entry.second;
      return peer.lifeline->update() == PeerState::kAlive && peer.stream->state().ok() &&
             !peer.stream->is_acknowledged();
    };
    while (std::any_of(peers_.begin(), peers_.end(), awaits_acknowledgement) && !deadline.passed())
      if (!worker_.progress()) std::this_thread::yield();
    for (const auto& [rank, peer] : peers_) peer.lifeline->say_farewell();
    for (const auto& [rank, peer] : peers_) peer.stream->close();
  }

  std::span<std::byte> window() const override { return window_; }

  std::string descriptor() const override {
    const MeetingPlace& place = assembly_.place();
    const std::string addresses = fmt::format("{}", fmt::join(place.addresses, ","));
    const std::string port = std::to_string(place.port);
    const std::string cookie(place.cookie.begin(), place.cookie.end());
    return write_descriptor(
        kFormat,
        {.rank = request_.rank,
         .window_bytes = request_.window_bytes,
         .fields = {addresses, port, cookie, sum_of(request_.rank, request_.window_bytes, addresses, port, cookie)}});
  }

  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const PeerDescriptor> peers,
                                                     Deadline deadline) override {
    if (::getpid() != owner_) {
      return Status(StatusCode::kWrongState,
                    fmt::format("process {} opened this endpoint; a forked child must open its own", owner_));
    }
    ACCORD_ASSIGN_OR_RETURN(const std::vector<MeetingPlace> places, places_of(peers));
    std::map<Rank, std::shared_ptr<Stream>> streams;
    const auto hello_to = [&](Rank rank) {
      auto& stream = streams[rank] = std::make_shared<Stream>(worker_, window_);
      const auto place = std::find_if(places.begin(), places.end(), [&](const auto& p) { return p.rank == rank; });
      return Hello{.rank = request_.rank,
                   .to = place->cookie,
                   .from = assembly_.place().cookie,
                   .stream = stream->id(),
                   .worker_address = worker_.address()};
    };
    ACCORD_ASSIGN_OR_RETURN(std::vector<Met> met, assembly_.meet(places, hello_to, deadline));
    std::vector<std::unique_ptr<Link>> links;
    Status failure;
    // For every peer met, even if one lifeline cannot be created: each of them relies on this rank and gets a
    // farewell.
    for (std::size_t i = 0; i < met.size(); ++i) {
      const Rank rank = places[i].rank;
      auto lifeline = Lifeline::create(std::move(met[i].socket));
      if (!lifeline) {
        failure = lifeline.status();
        continue;
      }
      Peer& peer = peers_[rank] = {.stream = streams[rank], .lifeline = std::move(*lifeline)};
      if (Status opened = peer.stream->open(met[i].hello.worker_address, met[i].hello.stream); !opened.ok())
        failure = Status(opened.code(), fmt::format("rank {}: {}", rank, opened.message()), {rank});
      links.push_back(std::make_unique<UcxLink>(rank, request_.window_bytes, peer.stream, peer.lifeline));
    }
    ACCORD_RETURN_IF_ERROR(failure);
    if (peers_.size() == request_.peer_count()) assembly_.close();
    return links;
  }

 private:
  struct Peer {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<Lifeline> lifeline;
  };

  Result<std::vector<MeetingPlace>> places_of(std::span<const PeerDescriptor> peers) const {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<Descriptor> descriptors, read_peers(kFormat, request_, peers));
    std::vector<MeetingPlace> places;
    for (const Descriptor& descriptor : descriptors) {
      ACCORD_ASSIGN_OR_RETURN(MeetingPlace place, place_of(descriptor));
      if (peers_.contains(place.rank)) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("rank {} is connected to rank {} already", request_.rank, place.rank));
      }
      places.push_back(std::move(place));
    }
    return places;
  }

  EndpointRequest request_;
  std::optional<SharedSegment> memory_;
  std::span<std::byte> window_;
  Worker& worker_;
  Assembly assembly_;
  pid_t owner_;
  std::map<Rank, Peer> peers_;
};

class UcxTransport final : public Transport {
 public:
  std::string_view name() const override { return kName; }
  Status viable() const override { return Worker::viable(); }
  bool reaches(const PlaceView&, const PlaceView&) const override { return true; }
  bool maps() const override { return false; }

  Result<std::unique_ptr<Endpoint>> open(const EndpointRequest& request) override {
    ACCORD_RETURN_IF_ERROR(check_request(kName, request));
    Result<Worker*> worker = Worker::instance();
    if (!worker) return worker.status().with_context("transport ucx");
    std::optional<SharedSegment> memory;
    if (request.window == nullptr) {
      Result<SharedSegment> made =
          SharedSegment::create(fmt::format("accord-rank{}", request.rank), request.window_bytes);
      if (!made) return made.status().with_context("transport ucx");
      made->close_fd();
      memory = std::move(*made);
    }
    Result<Assembly> assembly = Assembly::create(request.rank, request.size);
    if (!assembly) return assembly.status().with_context("transport ucx");
    return std::unique_ptr<Endpoint>(
        std::make_unique<UcxEndpoint>(request, std::move(memory), **worker, std::move(*assembly)));
  }
};

}  // namespace

}  // namespace accord::transport::ucx

std::unique_ptr<accord::transport::Transport> accord::transport::make_ucx_transport() {
  return std::make_unique<ucx::UcxTransport>();
}
