// A transport like shm: windows are memory that all ranks have mapped, a rank that leaves says so in its peers'
// windows, and its death is noticed through its process. Ranks call each other, and no rank is connected before all
// have said that they are. Sockets and segments are left out; the watches of processes are those of shm.
#include "simulation/transport.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/text.hpp"
#include "exec/window_layout.hpp"
#include "simulation/planted_bug.hpp"
#include "transport/descriptor.hpp"
#include "transport/shm/process_watch.hpp"

int accord_planted_bug = 0;

namespace accord::simulation {
namespace {

using transport::Descriptor;
using transport::DescriptorFormat;
using transport::EndpointRequest;
using transport::Link;
using transport::PeerDescriptor;
using transport::PeerState;
using transport::ProcessLife;
using transport::ProcessWatch;

constexpr std::string_view kName = "simulated";
constexpr DescriptorFormat kFormat{.transport = kName, .version = 1, .field_count = 1};
constexpr Time kLook = 2 * kMillisecond;
constexpr Time kLateAlarm = kMillisecond;  // a planted bug

Residents* the_residents = nullptr;

bool has_ended(const ProcessWatch& watch) {
  return watch.process == nullptr ? watch.life == ProcessLife::kEnded : watch.process->has_ended();
}

class SimulatedLink final : public Link {
 public:
  SimulatedLink(Rank peer, Resident& resident, ProcessWatch watch)
      : Link(peer), resident_(resident), window_(resident.window), watch_(std::move(watch)) {}

  std::byte* mapped() const override { return window_->bytes().data(); }
  Status put(std::span<const std::byte> source, std::size_t offset) override {
    Scheduler::current()->preempt();
    if (!source.empty()) std::memcpy(range(offset, source.size()), source.data(), source.size());
    return {};
  }
  Status get(std::size_t offset, std::span<std::byte> destination) override {
    Scheduler::current()->preempt();
    if (!destination.empty()) std::memcpy(destination.data(), range(offset, destination.size()), destination.size());
    return {};
  }
  Status signal(std::size_t offset, std::uint64_t word) override {
    Scheduler& scheduler = *Scheduler::current();
    scheduler.preempt();
    auto* const flag = reinterpret_cast<std::uint64_t*>(range(offset, sizeof word));
    if (offset == exec::WindowLayout::alarm() && accord_planted_bug == 1 && peer() == 0) return {};
    if (offset == exec::WindowLayout::alarm() && accord_planted_bug == 2) {
      scheduler.at(scheduler.now() + kLateAlarm, [window = window_, flag, word] { *flag = word; });
      return {};
    }
    std::atomic_ref<std::uint64_t>(*flag).store(word, std::memory_order_release);
    return {};
  }
  PeerState peer_state() const override {
    return resident_.has_left ? PeerState::kLeft : is_lost_ ? PeerState::kLost : PeerState::kAlive;
  }
  int liveness_fd() const override { return watch_.process == nullptr ? -1 : watch_.process->ended().get(); }
  PeerState update_peer_state() override {
    if (has_ended(watch_) && !resident_.has_left) is_lost_ = true;
    return peer_state();
  }

 private:
  std::byte* range(std::size_t offset, std::size_t bytes) const {
    const std::span<std::byte> window = window_->bytes();
    if (offset > window.size() || bytes > window.size() - offset) std::abort();
    return window.data() + offset;
  }

  Resident& resident_;
  const std::shared_ptr<Pages> window_;
  const ProcessWatch watch_;
  bool is_lost_ = false;
};

class SimulatedEndpoint final : public transport::Endpoint {
 public:
  SimulatedEndpoint(const EndpointRequest& request, Resident& resident)
      : request_(request), resident_(resident), window_(resident.window) {}
  ~SimulatedEndpoint() override {
    resident_.has_left = true;
    Scheduler::current()->wake_all(the_residents);
  }

  std::span<std::byte> window() const override { return window_->bytes(); }
  std::string descriptor() const override {
    return write_descriptor(
        kFormat,
        {.rank = request_.rank, .window_bytes = request_.window_bytes, .fields = {std::to_string(resident_.number)}});
  }

  Result<std::vector<std::unique_ptr<Link>>> connect(std::span<const PeerDescriptor> peers,
                                                     Deadline deadline) override {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<Descriptor> descriptors, read_peers(kFormat, request_, peers));
    std::vector<Peer> found;
    for (const Descriptor& descriptor : descriptors) {
      ACCORD_ASSIGN_OR_RETURN(const std::int64_t number, parse_integer(descriptor.fields[0], "endpoint"));
      Resident* const peer = the_residents->find(static_cast<std::uint64_t>(number));
      if (peer == nullptr || peer->has_left) return gone({descriptor.rank});
      found.push_back({descriptor.rank, *peer, transport::watch_process(peer->process->pid)});
      const SimulatorWork work;
      resident_.called.insert(peer->number);
    }
    const auto has_called = [this](const Peer& peer) { return peer.resident.called.contains(resident_.number); };
    ACCORD_RETURN_IF_ERROR(await(found, deadline, has_called));
    resident_.has_connected = true;
    ACCORD_RETURN_IF_ERROR(await(found, deadline, [](const Peer& peer) { return peer.resident.has_connected; }));
    std::vector<std::unique_ptr<Link>> links;
    for (Peer& peer : found)
      links.push_back(std::make_unique<SimulatedLink>(peer.rank, peer.resident, std::move(peer.watch)));
    return links;
  }

 private:
  struct Peer {
    Rank rank;
    Resident& resident;
    ProcessWatch watch;
  };

  /// Waits until all peers are `there`. Fails if one leaves or dies before.
  template <typename IsThere>
  Status await(const std::vector<Peer>& peers, Deadline deadline, IsThere is_there) const {
    Scheduler& scheduler = *Scheduler::current();
    scheduler.wake_all(the_residents);
    while (true) {
      std::vector<Rank> missing, ended;
      for (const Peer& peer : peers) {
        if (is_there(peer)) continue;
        missing.push_back(peer.rank);
        if (peer.resident.has_left || has_ended(peer.watch)) ended.push_back(peer.rank);
      }
      if (missing.empty()) return {};
      if (!ended.empty()) return gone(std::move(ended));
      if (deadline.passed())
        return Status(
            StatusCode::kTimeout,
            fmt::format("rank {} cannot connect: {} did not connect in time", request_.rank, ranks_text(missing)),
            missing);
      scheduler.block("peers to connect", the_residents, scheduler.now() + kLook);
    }
  }

  Status gone(std::vector<Rank> ranks) const {
    return Status(StatusCode::kPeerLost,
                  fmt::format("rank {} cannot connect to {}: it gave up, or its process has ended", request_.rank,
                              ranks_text(ranks)),
                  ranks);
  }

  const EndpointRequest request_;
  Resident& resident_;
  const std::shared_ptr<Pages> window_;
};

class SimulatedTransport final : public transport::Transport {
 public:
  std::string_view name() const override { return kName; }
  Status viable() const override { return {}; }
  bool reaches(const transport::PlaceView&, const transport::PlaceView&) const override { return true; }
  Result<std::unique_ptr<transport::Endpoint>> open(const EndpointRequest& request) override {
    ACCORD_RETURN_IF_ERROR(transport::check_request(kName, request));
    Resident& resident = the_residents->add(request.window_bytes);
    return std::unique_ptr<transport::Endpoint>(std::make_unique<SimulatedEndpoint>(request, resident));
  }
};

}  // namespace

Pages::Pages(std::size_t bytes) {
  const SimulatorWork work;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  bytes_ = {static_cast<std::byte*>(memory), bytes};
}

Pages::~Pages() {
  const SimulatorWork work;
  munmap(bytes_.data(), bytes_.size());
}

Residents::Residents() { the_residents = this; }
Residents::~Residents() { the_residents = nullptr; }
Residents& Residents::current() { return *the_residents; }

Resident& Residents::add(std::size_t window_bytes) {
  const SimulatorWork work;
  const std::uint64_t number = all_.size() + 1;
  std::unique_ptr<Resident>& resident = all_[number];
  resident = std::make_unique<Resident>();
  resident->number = number;
  resident->process = Scheduler::fiber()->process;
  resident->window = std::make_shared<Pages>(window_bytes);
  return *resident;
}

Resident* Residents::find(std::uint64_t number) {
  const auto found = all_.find(number);
  return found == all_.end() ? nullptr : found->second.get();
}

std::size_t Residents::count(const Process& process) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      all_, [&](const auto& one) { return one.second->process == &process && !one.second->has_left; }));
}

}  // namespace accord::simulation

namespace accord::transport {

std::span<Transport* const> transports() {
  static simulation::SimulatedTransport simulated;
  static Transport* const all[] = {&simulated};
  return all;
}

}  // namespace accord::transport
