// A rank that leaves stores a word into its line of each peer's part. The shared links report everything else.
#include "transport/view_endpoint.hpp"

#include <unistd.h>

#include <atomic>
#include <optional>
#include <utility>

#include "base/rounding.hpp"

namespace accord::transport {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;
constexpr std::uint64_t kHasLeft = 1;

std::size_t words_bytes(std::size_t ranks) { return round_up(ranks * kLine, kPage); }

/// The same writes, shifted by an offset.
class ViewWriter final : public RemoteWriter {
 public:
  ViewWriter(RemoteWriter& writer, std::size_t offset) : writer_(writer), offset_(offset) {}

  std::size_t write_some(std::span<const std::byte> source, std::size_t offset) override {
    return writer_.write_some(source, offset_ + offset);
  }
  void write_note(std::span<const std::byte> source, std::size_t offset, std::uint64_t word,
                  std::size_t word_offset) override {
    writer_.write_note(source, offset_ + offset, word, offset_ + word_offset);
  }
  void write_word(std::uint64_t word, std::size_t offset) override { writer_.write_word(word, offset_ + offset); }
  void write_packets(std::span<const std::byte> source, std::size_t offset, const PacketLines& lines,
                     std::uint64_t word) override {
    writer_.write_packets(source, offset_ + offset, lines, word);
  }
  void flush() override { writer_.flush(); }
  void flush_notes() override { writer_.flush_notes(); }
  bool has_room() const override { return writer_.has_room(); }
  std::uint64_t begin_read(std::size_t offset, std::span<std::byte> destination) override {
    return writer_.begin_read(offset_ + offset, destination);
  }
  Result<bool> read_ended(std::uint64_t number) override { return writer_.read_ended(number); }
  void abandon_read(std::uint64_t number) override { writer_.abandon_read(number); }
  void progress() override { writer_.progress(); }

 private:
  RemoteWriter& writer_;
  const std::size_t offset_;
};

class ViewLink final : public Link {
 public:
  /// `window_at`: offset of the view in the peer's window. `word`: location in this rank's own window where the peer
  /// reports that it leaves.
  ViewLink(std::shared_ptr<SharedEndpoint> shared, Rank peer, Rank shared_peer, std::size_t window_at, std::byte* word)
      : Link(peer), shared_(std::move(shared)), link_(shared_->link(shared_peer)), window_at_(window_at), word_(word) {
    if (RemoteWriter* const writer = link_.link->remote()) writer_.emplace(*writer, window_at);
  }

  std::byte* mapped() const override {
    std::byte* const window = link_.link->mapped();
    return window == nullptr ? nullptr : window + window_at_;
  }
  RemoteWriter* remote() override { return writer_ ? &*writer_ : nullptr; }
  Status put(std::span<const std::byte> source, std::size_t offset) override {
    const std::lock_guard lock(link_.mutex);
    return link_.link->put(source, window_at_ + offset);
  }
  Status get(std::size_t offset, std::span<std::byte> destination) override {
    const std::lock_guard lock(link_.mutex);
    return link_.link->get(window_at_ + offset, destination);
  }
  Status signal(std::size_t offset, std::uint64_t word) override {
    const std::lock_guard lock(link_.mutex);
    return link_.link->signal(window_at_ + offset, word);
  }
  PeerState peer_state() const override { return has_left() ? PeerState::kLeft : link_.link->peer_state(); }
  int liveness_fd() const override { return link_.link->liveness_fd(); }
  PeerState update_peer_state() override {
    const std::lock_guard lock(link_.mutex);
    const PeerState state = link_.link->update_peer_state();
    return has_left() ? PeerState::kLeft : state;
  }

 private:
  bool has_left() const {
    auto* const word = reinterpret_cast<std::uint64_t*>(word_);
    return std::atomic_ref<std::uint64_t>(*word).load(std::memory_order_acquire) == kHasLeft;
  }

  const std::shared_ptr<SharedEndpoint> shared_;
  SharedEndpoint::SharedLink& link_;
  const std::size_t window_at_;
  std::byte* const word_;
  std::optional<ViewWriter> writer_;
};

class ViewEndpoint final : public Endpoint {
 public:
  ViewEndpoint(std::shared_ptr<SharedEndpoint> shared, ViewRequest request)
      : shared_(std::move(shared)), request_(std::move(request)) {}

  ~ViewEndpoint() override { leave_view(*shared_, request_); }

  std::span<std::byte> window() const override {
    return shared_->window().subspan(request_.offset + words_bytes(request_.ranks.size()), request_.window_bytes);
  }
  std::string descriptor() const override { return {}; }
  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const PeerDescriptor> /*peers*/,
                                                     Deadline /*deadline*/) override {
    return Status(StatusCode::kWrongState, "a part of an endpoint is connected from the start");
  }

 private:
  const std::shared_ptr<SharedEndpoint> shared_;
  const ViewRequest request_;
};

}  // namespace

SharedEndpoint::SharedEndpoint(std::unique_ptr<Endpoint> endpoint, std::vector<std::unique_ptr<Link>> links)
    : owner_(::getpid()), endpoint_(std::move(endpoint)) {
  for (std::unique_ptr<Link>& link : links) {
    const Rank peer = link->peer();
    auto shared = std::make_unique<SharedLink>();
    shared->link = std::move(link);
    links_.emplace(peer, std::move(shared));
  }
}

std::size_t view_bytes(std::size_t ranks, std::size_t window_bytes) {
  return words_bytes(ranks) + round_up(window_bytes, kPage);
}

View make_view(std::shared_ptr<SharedEndpoint> shared, const ViewRequest& request) {
  View view;
  std::byte* const words = shared->window().data() + request.offset;
  for (std::size_t rank = 0; rank < request.ranks.size(); ++rank) {
    std::unique_ptr<Link>& link = view.links.emplace_back();
    if (static_cast<Rank>(rank) == request.rank) continue;
    link = std::make_unique<ViewLink>(shared, static_cast<Rank>(rank), request.ranks[rank],
                                      request.offset + words_bytes(request.ranks.size()), words + rank * kLine);
  }
  view.endpoint = std::make_unique<ViewEndpoint>(std::move(shared), request);
  return view;
}

void leave_view(SharedEndpoint& shared, const ViewRequest& request) {
  if (::getpid() != shared.owner()) return;  // the peers would take it for the parent's departure
  for (const Rank peer : request.ranks) {
    if (peer == request.ranks[static_cast<std::size_t>(request.rank)]) continue;
    SharedEndpoint::SharedLink& to_peer = shared.link(peer);
    const std::lock_guard lock(to_peer.mutex);
    (void)to_peer.link->signal(request.offset + static_cast<std::size_t>(request.rank) * kLine, kHasLeft);
  }
}

}  // namespace accord::transport
