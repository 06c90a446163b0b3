#include "expert/device/peer_exchange.hpp"

#include <algorithm>

#include "base/hash.hpp"
#include "base/wait.hpp"
#include "expert/config.hpp"
#include "expert/device/return_rows.hpp"
#include "expert/device/send_rows.hpp"

namespace accord::expert {
namespace {

constexpr std::int64_t kWarp = 32;
constexpr std::size_t kMinShared = std::size_t{64} << 10;  // minimum size of the PeerMemory
constexpr std::chrono::seconds kPeersTimeout(5);

/// How the memory of an exchange's own is divided; offsets in bytes.
struct OwnLayout {
  std::size_t words = 0, sent = 0, bytes = 0;
};

OwnLayout own_layout(const Placement& placement, int max_local) {
  const std::size_t ranks = to_size(placement.ranks());
  const std::size_t sent = std::max(to_size(placement.places()), ranks * to_size(max_local));
  OwnLayout layout{.words = round_up(ranks * sizeof(std::byte*), std::size_t{256})};
  layout.sent = layout.words + round_up(sizeof(OwnWords), std::size_t{256});
  layout.bytes = layout.sent + sent * sizeof(std::uint64_t);
  return layout;
}

int max_local(const Placement& placement) {
  std::size_t most = 0;
  for (Rank rank = 0; rank < placement.ranks(); ++rank) most = std::max(most, placement.experts_of(rank).size());
  return static_cast<int>(most);
}

}  // namespace

SharedLayout layout_of(const ExpertGroupConfig& config, const Placement& placement) {
  SharedLayout layout;
  const std::size_t ranks = to_size(placement.ranks()), words = sizeof(std::uint64_t);
  const std::size_t tokens = to_size(config.max_tokens_per_rank), choices = tokens * to_size(config.top_k);
  const std::size_t rows = std::max(ranks * tokens, choices);
  const auto reserve = [&](std::size_t& offset, std::size_t bytes) {
    offset = layout.bytes;
    layout.bytes += round_up(bytes, std::size_t{256});
  };
  layout.max_local = max_local(placement);
  layout.choices = static_cast<std::int64_t>(choices);
  reserve(layout.arrived, ranks * words);
  reserve(layout.done, ranks * words);
  reserve(layout.to_experts, ranks * to_size(layout.max_local) * words);
  reserve(layout.to_tokens, to_size(placement.places()) * words);
  reserve(layout.routing, ranks * kRoutingWords * words);
  reserve(layout.ids, ranks * choices * sizeof(std::int32_t));
  if (config.overflow == OverflowPolicy::kDropByWeight) reserve(layout.weights, ranks * choices * sizeof(float));
  reserve(layout.rows, rows * row_bytes(config.hidden, config.dtype));
  reserve(layout.scales, rows * scale_bytes(config.hidden));
  reserve(layout.row_weights, ranks * choices * sizeof(double));
  layout.bytes = std::max(layout.bytes, kMinShared);
  return layout;
}

Result<std::unique_ptr<RowExchange>> PeerExchange::create(KernelLauncher& launcher) {
  std::string identity;
  const auto prepare = [&]() -> Result<std::unique_ptr<PeerExchange>> {
    const Placement& placement = *launcher.setup().placement;
    const std::size_t bytes = own_layout(placement, max_local(placement)).bytes;
    ACCORD_ASSIGN_OR_RETURN(CallMemory memory, CallMemory::allocate(launcher.runtime(), launcher.device(), bytes,
                                                                    "the counters of an expert group"));
    std::unique_ptr<PeerExchange> exchange(new PeerExchange(launcher, std::move(memory)));
    ACCORD_ASSIGN_OR_RETURN(exchange->stream_, launcher.runtime().create_stream(launcher.device(), false));
    ACCORD_ASSIGN_OR_RETURN(identity, launcher.runtime().identity(launcher.device()));
    return exchange;
  };
  Result<std::unique_ptr<PeerExchange>> created = prepare();
  ACCORD_RETURN_IF_ERROR(Rendezvous(launcher.communicator()).meet({}, created.status()));
  ACCORD_RETURN_IF_ERROR((*created)->share_device(identity));
  ACCORD_RETURN_IF_ERROR((*created)->share_memory());
  return std::unique_ptr<RowExchange>(*std::move(created));
}

Status PeerExchange::share_device(std::string_view identity) {
  Communicator own = launcher_.communicator();
  const auto mine = static_cast<std::int64_t>(xxh3(std::as_bytes(std::span(identity))));
  std::vector<std::int64_t> all(to_size(own.size()));
  ACCORD_RETURN_IF_ERROR(own.all_gather({&mine, 1, DType::kInt64}, {all.data(), all.size(), DType::kInt64, {}}));
  launcher_.share_device(static_cast<int>(std::ranges::count(all, mine)));
  return {};
}

Status PeerExchange::share_memory() {
  const Communicator& communicator = launcher_.communicator();
  device::Runtime& runtime = launcher_.runtime();
  const Device device = launcher_.device();
  const SharedLayout layout = layout_of(launcher_.setup().config, *launcher_.setup().placement);
  ACCORD_ASSIGN_OR_RETURN(shared_, comm::PeerMemory::create(*communicator.group(), runtime, device, layout.bytes,
                                                            Deadline::in(comm::options_of(communicator).timeout)));
  std::vector<std::byte*> memory;
  memory.reserve(static_cast<std::size_t>(communicator.size()));
  for (Rank rank = 0; rank < communicator.size(); ++rank) memory.push_back(shared_->of(rank));
  const OwnLayout own = own_layout(*launcher_.setup().placement, layout.max_local);
  ACCORD_RETURN_IF_ERROR(runtime.copy(own_.data(), memory.data(), memory.size() * sizeof(std::byte*), device, stream_));
  ACCORD_RETURN_IF_ERROR(runtime.fill(own_.data() + own.words, 0, own.bytes - own.words, device, stream_));
  ACCORD_RETURN_IF_ERROR(runtime.synchronize(device, stream_));
  peers_ = {.memory = reinterpret_cast<std::byte**>(own_.data()),
            .stop = launcher_.stop().get(),
            .own = reinterpret_cast<OwnWords*>(own_.data() + own.words),
            .sent = reinterpret_cast<std::uint64_t*>(own_.data() + own.sent),
            .rank = communicator.rank(),
            .size = communicator.size(),
            .at = layout};
  return {};
}

PeerExchange::~PeerExchange() {
  // A kernel that is still running keeps using the memory of all ranks and the host's stop word: leak both.
  if (!own_.wait()) {
    (void)shared_.release();
    (void)new std::shared_ptr<const std::uint64_t>(launcher_.stop());  // NOLINT(bugprone-unhandled-exception-at-new)
  }
  if (stream_.handle != nullptr) (void)launcher_.runtime().destroy_stream(launcher_.device(), stream_);
}

void PeerExchange::wait_for_peers() {
  if (!own_.wait()) return;
  const Deadline deadline = Deadline::in(kPeersTimeout);
  OwnWords own;
  Waiter waiter(WaitPolicy::kYield);
  while (comm::failure_of(launcher_.communicator(), "close").ok() && !deadline.passed()) {
    if (!launcher_.launch(CountLate{peers_}, 1, stream_).ok()) return;
    if (!launcher_.runtime().copy(&own, peers_.own, sizeof(own), launcher_.device(), stream_).ok()) return;
    if (!launcher_.runtime().synchronize(launcher_.device(), stream_).ok()) return;
    if (own.failed != 0 || own.late == 0) return;
    (void)waiter.pause();
  }
}

Status PeerExchange::run(const DeviceHandle& handle, const Terms& terms, Stream stream,
                         const std::function<Status()>& enqueue) {
  ACCORD_ASSIGN_OR_RETURN(const std::shared_ptr<const device::Event> end,
                          launcher_.run(handle, terms, stream, enqueue));
  own_.set_last_use(end);
  handle.device_map().set_last_use(end);
  return {};
}

Status PeerExchange::prepare(const DeviceHandle& handle, const RoutingInput& input, Stream stream) {
  const Map& map = handle.device_map().map();
  return run(handle, {}, stream, [&] {
    return launcher_.launch_together(PrepareMap{peers_, map, input}, map.chunks() * kChunk, stream,
                                     PrepareMap::kShared);
  });
}

Status PeerExchange::send_rows(const DeviceHandle& handle, const Move& move, const ConstRows& tokens,
                               const Rows& slots) {
  const Map& map = handle.device_map().map();
  const std::int64_t rows = std::max(handle.tokens() * map.top_k, std::min(move.room, map.max_rows));
  return run(handle, move.terms, move.stream, [&] {
    return launcher_.launch_together(SendRows{peers_, map, tokens, slots, move.room, move.bytes}, kWarp * rows,
                                     move.stream);
  });
}

Status PeerExchange::return_rows(const DeviceHandle& handle, const Move& move, const ConstRows& slots, RowSums sums,
                                 std::byte* weights) {
  const Map& map = handle.device_map().map();
  const std::byte* const memory = shared_->of(peers_.rank);
  sums.rows = memory + peers_.at.rows;
  sums.row_stride = move.bytes.row;
  if (move.bytes.scales > 0) sums.scales = memory + peers_.at.scales;
  sums.scale_stride = move.bytes.scales;
  const std::int64_t rows = std::max(handle.tokens() * map.top_k, std::min(move.room, map.max_rows));
  return run(handle, move.terms, move.stream, [&] {
    return launcher_.launch_together(ReturnRows{peers_, map, slots, move.room, move.bytes, sums, weights}, kWarp * rows,
                                     move.stream);
  });
}

}  // namespace accord::expert
