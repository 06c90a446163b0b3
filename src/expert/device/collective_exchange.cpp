#include "expert/device/collective_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/wait.hpp"
#include "expert/config.hpp"

namespace accord::expert {
namespace {

constexpr std::int64_t kWarpThreads = 32;

/// The layout of a call's records. It depends on nothing in which ranks may differ.
RecordLayout records_of(const Move& move, int hidden) {
  const Operation operation = move.terms.operation;
  const bool has_scales = operation == Operation::kDispatch || operation == Operation::kCombine;
  const bool has_weights = operation == Operation::kDispatch || operation == Operation::kDispatchBackward;
  return record_layout({.row = move.bytes.row,
                        .scales = has_scales && is_float8(move.terms.dtype) ? scale_bytes(hidden) : 0,
                        .weight = has_weights ? sizeof(double) : 0});
}

std::shared_ptr<const device::Event> owned_event(device::Runtime& runtime, device::Event event) {
  return {new device::Event(event), [&runtime](const device::Event* it) {
            (void)runtime.destroy_event(*it);
            delete it;
          }};
}

}  // namespace

Result<std::unique_ptr<CollectiveExchange>> CollectiveExchange::allocate(KernelLauncher& launcher) {
  const ExpertGroupConfig& config = launcher.setup().config;
  const GatheredRouting largest{.choices = to_size(config.max_tokens_per_rank) * to_size(config.top_k),
                                .has_weights = config.overflow == OverflowPolicy::kDropByWeight};
  device::Runtime& runtime = launcher.runtime();
  const Device device = launcher.device();
  ACCORD_ASSIGN_OR_RETURN(CallMemory own,
                          CallMemory::allocate(runtime, device, sizeof(OwnWords), "the counters of an expert group"));
  ACCORD_ASSIGN_OR_RETURN(CallMemory routing,
                          CallMemory::allocate(runtime, device, to_size(launcher.setup().size()) * largest.stride(),
                                               "the routing of an expert group"));
  std::unique_ptr<CollectiveExchange> created(new CollectiveExchange(launcher, std::move(own), std::move(routing)));
  ACCORD_ASSIGN_OR_RETURN(const device::Event end, runtime.create_event(device));
  created->end_ = owned_event(runtime, end);
  ACCORD_ASSIGN_OR_RETURN(created->stream_, runtime.create_stream(device, false));
  ACCORD_RETURN_IF_ERROR(runtime.fill(created->own_.data(), 0, sizeof(OwnWords), device, created->stream_));
  ACCORD_RETURN_IF_ERROR(runtime.synchronize(device, created->stream_));
  return created;
}

Result<std::unique_ptr<RowExchange>> CollectiveExchange::create(KernelLauncher& launcher) {
  Result<std::unique_ptr<CollectiveExchange>> created = allocate(launcher);
  ACCORD_RETURN_IF_ERROR(Rendezvous(launcher.communicator()).meet({}, created.status()));
  const Bytes none{.by_rank = std::vector<std::size_t>(to_size(launcher.setup().size()))};
  const CallMemory& anything = (*created)->own_;
  ACCORD_RETURN_IF_ERROR((*created)->exchange(anything, none, anything, none, (*created)->stream_));
  return std::unique_ptr<RowExchange>(*std::move(created));
}

CollectiveExchange::~CollectiveExchange() {
  if (stream_.handle != nullptr) (void)launcher_.runtime().destroy_stream(launcher_.device(), stream_);
  if (!own_.wait())
    (void)new std::shared_ptr<const std::uint64_t>(launcher_.stop());  // NOLINT(bugprone-unhandled-exception-at-new)
}

GatheredRouting CollectiveExchange::routing_of(const Map& map) const {
  return {.memory = routing_.data(), .choices = to_size(map.of_rank()), .has_weights = map.weight != nullptr};
}

Status CollectiveExchange::check_stream(Operation operation, Stream stream) const {
  ACCORD_ASSIGN_OR_RETURN(const bool captured, launcher_.runtime().is_capturing(launcher_.device(), stream));
  if (!captured) return {};
  return {StatusCode::kUnsupported,
          fmt::format("{} on group \"{}\": the stream is being captured, but the rows of this group travel in "
                      "collectives, which need the numbers of rows on the host",
                      to_string(operation), launcher_.communicator().name())};
}

Status CollectiveExchange::note_end(const DeviceHandle& handle, Stream stream) {
  ACCORD_RETURN_IF_ERROR(launcher_.runtime().record(*end_, launcher_.device(), stream));
  own_.set_last_use(end_);
  routing_.set_last_use(end_);
  for (std::optional<CallMemory>* const memory : {&tokens_, &slots_})
    if (memory->has_value()) (*memory)->set_last_use(end_);
  handle.device_map().set_last_use(end_);
  return {};
}

Status CollectiveExchange::prepare(const DeviceHandle& handle, const RoutingInput& input, Stream stream) {
  ACCORD_RETURN_IF_ERROR(check_stream(Operation::kPrepare, stream));
  const Map& map = handle.device_map().map();
  const GatheredRouting routing = routing_of(map);
  device::Runtime& runtime = launcher_.runtime();
  const Device device = launcher_.device();
  std::byte* const mine = routing.memory + to_size(map.rank) * routing.stride();
  const auto write = [&]() -> Status {
    ACCORD_RETURN_IF_ERROR(runtime.fill(mine, 0, GatheredRouting::ids(), device, stream));
    return launcher_.launch(WriteRouting{routing, input, map.rank}, input.tokens * map.top_k, stream);
  };
  const auto build = [&]() -> Status {
    ACCORD_RETURN_IF_ERROR(launcher_.launch_together(
        BuildMap{routing, map, reinterpret_cast<OwnWords*>(own_.data()), launcher_.stop().get()}, map.chunks() * kChunk,
        stream, BuildMap::kShared));
    return handle.device_map().traffic().copy(map.traffic, stream);
  };
  Communicator communicator = launcher_.communicator();
  ACCORD_RETURN_IF_ERROR(launcher_.run(handle, {}, stream, write).status());
  Status status = communicator.all_gather(
      {mine, routing.stride(), DType::kUInt8, device},
      {routing.memory, routing.stride() * to_size(map.ranks), DType::kUInt8, device}, {.stream = stream});
  if (status.ok()) status = launcher_.run(handle, {}, stream, build).status();
  const Status ended = note_end(handle, stream);
  return status.ok() ? ended : status;
}

Status CollectiveExchange::await_map(const DeviceHandle& handle, Operation operation) const {
  const Communicator& communicator = launcher_.communicator();
  Waiter waiter(WaitPolicy::kYield);
  while (true) {
    ACCORD_ASSIGN_OR_RETURN(const bool built, handle.device_map().traffic().have_come());
    if (built) break;
    // Everything that the map waits for is watched: the group fails if it is not done in time.
    if (waiter.pause()) ACCORD_RETURN_IF_ERROR(comm::failure_of(communicator, to_string(operation)));
  }
  if (handle.device_map().traffic().numbers()[0] >= 0) return {};
  ACCORD_RETURN_IF_ERROR(comm::failure_of(communicator, to_string(operation)));
  return {StatusCode::kAborted, fmt::format("{} on group \"{}\": the map of handle {} was not built",
                                            to_string(operation), communicator.name(), handle.number)};
}

Result<CollectiveExchange::Traffic> CollectiveExchange::begin(const DeviceHandle& handle, const Move& move) {
  ACCORD_RETURN_IF_ERROR(check_stream(move.terms.operation, move.stream));
  ACCORD_RETURN_IF_ERROR(await_map(handle, move.terms.operation));
  const std::span<const std::int64_t> rows = handle.device_map().traffic().numbers();
  const std::size_t ranks = rows.size() / 2, record = records_of(move, launcher_.setup().config.hidden).bytes;
  const auto bytes_of = [&](std::span<const std::int64_t> of_ranks) {
    Bytes bytes;
    for (const std::int64_t of_rank : of_ranks) {
      bytes.by_rank.push_back(to_size(of_rank) * record);
      bytes.all += bytes.by_rank.back();
    }
    return bytes;
  };
  Traffic traffic{.tokens = bytes_of(rows.first(ranks)), .slots = bytes_of(rows.last(ranks))};
  ACCORD_RETURN_IF_ERROR(reserve(tokens_, traffic.tokens.all));
  ACCORD_RETURN_IF_ERROR(reserve(slots_, traffic.slots.all));
  return traffic;
}

Status CollectiveExchange::reserve(std::optional<CallMemory>& memory, std::size_t bytes) const {
  constexpr std::size_t kStep = std::size_t{2} << 20;
  if (memory.has_value() && memory->size() >= bytes) return {};
  memory.reset();  // waits for its last call
  ACCORD_ASSIGN_OR_RETURN(CallMemory larger,
                          CallMemory::allocate(launcher_.runtime(), launcher_.device(),
                                               round_up(bytes + bytes / 4 + 1, kStep), "the rows of an expert group"));
  memory.emplace(std::move(larger));
  return {};
}

Status CollectiveExchange::exchange(const CallMemory& from, const Bytes& sent, const CallMemory& to,
                                    const Bytes& received, Stream stream) const {
  Communicator communicator = launcher_.communicator();
  return communicator.all_to_all_v({from.data(), sent.all, DType::kUInt8, launcher_.device()}, sent.by_rank,
                                   {to.data(), received.all, DType::kUInt8, launcher_.device()}, received.by_rank,
                                   {.stream = stream});
}

Status CollectiveExchange::send_rows(const DeviceHandle& handle, const Move& move, const ConstRows& tokens,
                                     const Rows& slots) {
  ACCORD_ASSIGN_OR_RETURN(const Traffic traffic, begin(handle, move));
  const Map& map = handle.device_map().map();
  const RecordLayout layout = records_of(move, launcher_.setup().config.hidden);
  const auto pack = [&] {
    return launcher_.launch(PackTokens{map, tokens, {tokens_->data(), layout, move.bytes}},
                            kWarpThreads * handle.tokens() * map.top_k, move.stream);
  };
  const auto unpack = [&] {
    return launcher_.launch(UnpackSlots{map, slots, move.room, {slots_->data(), layout, move.bytes}},
                            kWarpThreads * std::min(move.room, map.max_rows), move.stream);
  };
  Status status = launcher_.run(handle, move.terms, move.stream, pack).status();
  if (status.ok()) status = exchange(*tokens_, traffic.tokens, *slots_, traffic.slots, move.stream);
  if (status.ok()) status = launcher_.run(handle, move.terms, move.stream, unpack).status();
  const Status ended = note_end(handle, move.stream);
  return status.ok() ? ended : status;
}

Status CollectiveExchange::return_rows(const DeviceHandle& handle, const Move& move, const ConstRows& slots,
                                       RowSums sums, std::byte* weights) {
  ACCORD_ASSIGN_OR_RETURN(const Traffic traffic, begin(handle, move));
  const Map& map = handle.device_map().map();
  const RecordLayout layout = records_of(move, sums.hidden);
  sums.rows = tokens_->data();
  if (move.bytes.scales > 0) sums.scales = tokens_->data() + layout.scales;
  sums.row_stride = sums.scale_stride = layout.bytes;
  sums.positions = map.sent_at;
  const auto pack = [&] {
    return launcher_.launch(PackSlots{map, slots, move.room, {slots_->data(), layout, move.bytes}},
                            kWarpThreads * map.max_rows, move.stream);
  };
  const auto add_up = [&] {
    return launcher_.launch(SumRecords{map, sums, {tokens_->data(), layout, move.bytes}, weights},
                            handle.tokens() * sums.hidden, move.stream);
  };
  Status status = launcher_.run(handle, move.terms, move.stream, pack).status();
  if (status.ok()) status = exchange(*slots_, traffic.slots, *tokens_, traffic.tokens, move.stream);
  if (status.ok()) status = launcher_.run(handle, move.terms, move.stream, add_up).status();
  const Status ended = note_end(handle, move.stream);
  return status.ok() ? ended : status;
}

}  // namespace accord::expert
