// Every open endpoint is a Resident in a table of the process. Its descriptor carries its number in the table and a
// random word that distinguishes this process from all others (a forked child has its own table and word).
//
// connect() records in its own Resident which peers it calls and waits until each of them has called back, so that it
// fails in the same way as between processes when a peer does not arrive. Links and the endpoint share the Residents,
// so that a window stays mapped while it is in use. A destroyed endpoint leaves the table and marks its Resident
// kLeft.
#include "transport/inproc/inproc_transport.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "transport/descriptor.hpp"
#include "transport/inproc/window_memory.hpp"
#include "transport/mapped_link.hpp"
#include "transport/per_process.hpp"

namespace accord::transport {
namespace {

using ResidentId = std::int64_t;

constexpr std::string_view kName = "inproc";
constexpr DescriptorFormat kFormat{.transport = kName, .version = 1, .field_count = 2};  // process word, resident

// One open endpoint.
struct Resident {
  Resident(ResidentId id_, WindowMemory window_) : id(id_), window(std::move(window_)) {}

  const ResidentId id;
  const WindowMemory window;
  std::atomic<PeerState> state{PeerState::kAlive};
  std::set<ResidentId> called;  // the peers that it connects to; guarded by Residents::mutex
};

struct Residents {
  std::mutex mutex;
  std::condition_variable changed;  // a resident called, or left
  std::map<ResidentId, std::shared_ptr<Resident>> all;
  ResidentId next = 1;
  const std::string process_word =
      fmt::format("{}-{}", ::getpid(), hex64(std::uint64_t{std::random_device{}()} << 32 | std::random_device{}()));
};

class InprocLink final : public MappedLink {
 public:
  InprocLink(Rank peer, std::shared_ptr<Resident> resident)
      : MappedLink(peer, resident->window.bytes()), resident_(std::move(resident)) {}

  PeerState peer_state() const override { return resident_->state.load(std::memory_order_acquire); }
  int liveness_fd() const override { return -1; }
  PeerState update_peer_state() override { return peer_state(); }

 private:
  std::shared_ptr<Resident> resident_;
};

class InprocEndpoint final : public Endpoint {
 public:
  InprocEndpoint(const EndpointRequest& request, WindowMemory window) : request_(request) {
    Residents& residents = per_process<Residents>();
    const std::lock_guard lock(residents.mutex);
    resident_ = std::make_shared<Resident>(residents.next++, std::move(window));
    residents.all.emplace(resident_->id, resident_);
    descriptor_ = write_descriptor(kFormat, {.rank = request.rank,
                                             .window_bytes = request.window_bytes,
                                             .fields = {residents.process_word, std::to_string(resident_->id)}});
  }

  ~InprocEndpoint() override {
    Residents& residents = per_process<Residents>();
    {
      const std::lock_guard lock(residents.mutex);
      residents.all.erase(resident_->id);
      resident_->state.store(PeerState::kLeft, std::memory_order_release);
    }
    residents.changed.notify_all();
  }

  std::span<std::byte> window() const override { return resident_->window.bytes(); }
  std::string descriptor() const override { return descriptor_; }

  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const PeerDescriptor> peers,
                                                     Deadline deadline) override {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<Descriptor> descriptors, read_peers(kFormat, request_, peers));
    Residents& residents = per_process<Residents>();
    std::unique_lock lock(residents.mutex);
    std::vector<std::shared_ptr<Resident>> found;
    for (const Descriptor& descriptor : descriptors) {
      ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<Resident> peer, find(residents, descriptor));
      found.push_back(std::move(peer));
    }
    for (const auto& peer : found) resident_->called.insert(peer->id);
    residents.changed.notify_all();
    ACCORD_RETURN_IF_ERROR(wait_for_calls(residents, lock, descriptors, found, deadline));

    std::vector<std::unique_ptr<Link>> links;
    for (std::size_t i = 0; i < found.size(); ++i) {
      links.push_back(std::make_unique<InprocLink>(descriptors[i].rank, std::move(found[i])));
    }
    return links;
  }

 private:
  Result<std::shared_ptr<Resident>> find(const Residents& residents, const Descriptor& descriptor) const {
    if (descriptor.fields[0] != residents.process_word) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("rank {} is in another process ({}), which transport inproc cannot reach",
                                descriptor.rank, descriptor.fields[0]),
                    {descriptor.rank});
    }
    const Result<std::int64_t> id = parse_integer(descriptor.fields[1], "resident");
    if (!id) {
      return Status(StatusCode::kCorrupt, fmt::format("rank {}: its descriptor has no number", descriptor.rank),
                    {descriptor.rank});
    }
    const auto found = residents.all.find(*id);
    if (found == residents.all.end()) return gone({descriptor.rank});
    if (resident_->called.contains(*id)) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("rank {} is connected to rank {} already", request_.rank, descriptor.rank));
    }
    return found->second;
  }

  Status wait_for_calls(Residents& residents, std::unique_lock<std::mutex>& lock,
                        std::span<const Descriptor> descriptors, std::span<const std::shared_ptr<Resident>> peers,
                        Deadline deadline) const {
    for (;;) {
      std::vector<Rank> missing;
      std::vector<Rank> left;
      for (std::size_t i = 0; i < peers.size(); ++i) {
        if (peers[i]->called.contains(resident_->id)) continue;
        missing.push_back(descriptors[i].rank);
        if (peers[i]->state == PeerState::kLeft) left.push_back(descriptors[i].rank);
      }
      if (!left.empty()) return gone(std::move(left));
      if (missing.empty()) return {};
      if (deadline.passed()) {
        return Status(StatusCode::kTimeout,
                      fmt::format("rank {} cannot connect over inproc: {} did not connect in time", request_.rank,
                                  ranks_text(missing)),
                      missing);
      }
      residents.changed.wait_until(lock, deadline.at());
    }
  }

  Status gone(std::vector<Rank> ranks) const {
    return Status(StatusCode::kPeerLost,
                  fmt::format("rank {} cannot connect to {} over inproc: it has already closed", request_.rank,
                              ranks_text(ranks)),
                  ranks);
  }

  EndpointRequest request_;
  std::shared_ptr<Resident> resident_;
  std::string descriptor_;
};

class InprocTransport final : public Transport {
 public:
  std::string_view name() const override { return kName; }
  Status viable() const override { return {}; }
  bool reaches(const PlaceView& mine, const PlaceView& peer) const override {
    return mine.host == peer.host && mine.process_space == peer.process_space && mine.process == peer.process;
  }
  Result<std::unique_ptr<Endpoint>> open(const EndpointRequest& request) override {
    ACCORD_RETURN_IF_ERROR(check_request(kName, request));
    ACCORD_ASSIGN_OR_RETURN(WindowMemory window, WindowMemory::create(request.window_bytes));
    return std::unique_ptr<Endpoint>(std::make_unique<InprocEndpoint>(request, std::move(window)));
  }
};

}  // namespace

std::unique_ptr<Transport> make_inproc_transport() { return std::make_unique<InprocTransport>(); }

}  // namespace accord::transport
