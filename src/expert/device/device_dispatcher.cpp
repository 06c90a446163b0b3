// A call launches five or six kernels. One waits until all ranks have read the previous call's data, one writes the
// data that other ranks will read, one meets the other ranks, one or two read this rank's data, and one signals that
// reading is done. prepare() launches more kernels after the meeting, which build the map.
#include "expert/device/device_dispatcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/rounding.hpp"
#include "base/wait.hpp"
#include "expert/config.hpp"
#include "expert/device/drop_kernels.hpp"
#include "expert/device/map_kernels.hpp"
#include "expert/device/row_kernels.hpp"
#include "expert/device/sum_kernel.hpp"

namespace accord::expert {
namespace {

/// Maximum number of blocks of a kernel per multiprocessor.
constexpr int kBlocksPerMultiprocessor = 8;
constexpr std::int64_t kWarp = 32;
constexpr std::size_t kMinShared = std::size_t{64} << 10;  // minimum size of the PeerMemory
constexpr std::chrono::seconds kPeersTimeout(5);

std::size_t weight_bytes(Given weights) {
  if (weights == Given::kFloat64) return sizeof(double);
  return weights == Given::kYes ? sizeof(float) : 0;
}

/// Rows of slots that fit into a buffer, as far as the host knows them.
std::int64_t rows_in(const ConstBuffer& slots, int hidden) { return static_cast<std::int64_t>(slots.count) / hidden; }

/// Rows that fit into a buffer and into each of the given buffers beside it.
std::int64_t room_of(const ConstBuffer& rows, int hidden, const ConstBuffer& scales, const ConstBuffer& weights) {
  std::int64_t room = rows_in(rows, hidden);
  if (is_given(scales)) room = std::min(room, static_cast<std::int64_t>(scales.count) / scales_of_row(hidden));
  if (is_given(weights)) room = std::min(room, static_cast<std::int64_t>(weights.count));
  return room;
}

/// Builds a call's record: the operation, the handle, how often it was prepared, and the remaining fields that must
/// match.
exec::RequestRecord record_of(Operation operation, std::uint32_t handle, std::uint32_t generation,
                              const std::array<std::uint8_t, 4>& rest) {
  return {.root = static_cast<Rank>(operation),
          .count = (std::uint64_t{handle} << 32) | generation,
          .parts = std::bit_cast<std::uint32_t>(rest)};
}

std::array<std::uint8_t, 4> rest_of(const exec::RequestRecord& record) {
  return std::bit_cast<std::array<std::uint8_t, 4>>(static_cast<std::uint32_t>(record.parts));
}

std::string text_of(const exec::RequestRecord& record) {
  const auto operation = static_cast<Operation>(record.root);
  const auto rest = rest_of(record);
  return expert::text_of(CallRecord{.operation = operation,
                                    .dtype = rest[0],
                                    .result_dtype = rest[1],
                                    .scales = static_cast<Given>(rest[2]),
                                    .weights = static_cast<Given>(rest[3]),
                                    .handle = static_cast<std::uint32_t>(record.count >> 32),
                                    .generation = static_cast<std::uint32_t>(record.count)});
}

bool is_alike(const exec::RequestRecord& a, const exec::RequestRecord& b) {
  const auto mine = rest_of(a), theirs = rest_of(b);
  const auto matches = [](std::uint8_t one, std::uint8_t other) {
    constexpr auto kAny = static_cast<std::uint8_t>(Given::kAny);
    return one == other || one == kAny || other == kAny;
  };
  return a.root == b.root && a.count == b.count && mine[0] == theirs[0] && mine[1] == theirs[1] &&
         matches(mine[2], theirs[2]) && matches(mine[3], theirs[3]);
}

}  // namespace

SharedLayout layout_of(const ExpertGroupConfig& config, int ranks) {
  SharedLayout layout;
  const std::size_t all = to_size(ranks), words = sizeof(std::uint64_t);
  const std::size_t choices = to_size(config.max_tokens_per_rank) * to_size(config.top_k);
  const auto reserve = [&](std::size_t& offset, std::size_t bytes) {
    offset = layout.bytes;
    layout.bytes += round_up(bytes, std::size_t{256});
  };
  reserve(layout.arrived, all * words);
  reserve(layout.done, all * words);
  reserve(layout.routing, all * kRoutingWords * words);
  reserve(layout.ids, all * choices * sizeof(std::int32_t));
  if (config.overflow == OverflowPolicy::kDropByWeight) reserve(layout.weights, all * choices * sizeof(float));
  reserve(layout.rows, choices * row_bytes(config.hidden, config.dtype));
  reserve(layout.scales, choices * to_size(scales_of_row(config.hidden)) * sizeof(float));
  reserve(layout.row_weights, choices * sizeof(double));
  layout.bytes = std::max(layout.bytes, kMinShared);
  layout.choices = static_cast<std::int64_t>(choices);
  return layout;
}

DeviceDispatcher::DeviceDispatcher(std::shared_ptr<const GroupSetup> setup, device::Runtime& runtime, CallMemory own)
    : setup_(std::move(setup)),
      config_(setup_->config),
      communicator_(setup_->communicator),
      device_(config_.device),
      runtime_(runtime),
      own_(std::move(own)),
      report_(start_report(*setup_)) {}

Result<std::unique_ptr<TokenDispatcher>> DeviceDispatcher::create(std::shared_ptr<const GroupSetup> setup) {
  const Device device = setup->config.device;
  ACCORD_ASSIGN_OR_RETURN(device::Runtime* const runtime, device::runtime_of(device.type));
  if (device.index < 0 || device.index >= runtime->count())
    return Status(StatusCode::kInvalidArgument, fmt::format("device is {}, but this rank has {} devices of that type",
                                                            to_string(device), runtime->count()));
  const std::size_t bytes = round_up(to_size(setup->size()) * sizeof(std::byte*), std::size_t{256}) + sizeof(OwnWords);
  ACCORD_ASSIGN_OR_RETURN(CallMemory own,
                          CallMemory::allocate(*runtime, device, bytes, "the counters of an expert group"));
  std::unique_ptr<DeviceDispatcher> created(new DeviceDispatcher(std::move(setup), *runtime, std::move(own)));
  ACCORD_ASSIGN_OR_RETURN(created->stream_, runtime->create_stream(device, false));
  ACCORD_ASSIGN_OR_RETURN(created->stop_, comm::stop_word(created->communicator_, device));
  ACCORD_ASSIGN_OR_RETURN(const int processors, runtime->multiprocessors(device));
  created->max_blocks_ = kBlocksPerMultiprocessor * processors;
  ACCORD_ASSIGN_OR_RETURN(created->placement_,
                          DevicePlacement::create(*runtime, device, created->stream_, *created->setup_->placement));
  return std::unique_ptr<TokenDispatcher>(std::move(created));
}

Status DeviceDispatcher::connect() {
  Communicator own = communicator_;
  return Rendezvous(own).meet({}, share_memory());
}

Status DeviceDispatcher::share_memory() {
  const SharedLayout layout = layout_of(config_, communicator_.size());
  ACCORD_ASSIGN_OR_RETURN(shared_, comm::PeerMemory::create(*communicator_.group(), runtime_, device_, layout.bytes,
                                                            Deadline::in(comm::options_of(communicator_).timeout)));
  std::vector<std::byte*> memory;
  memory.reserve(static_cast<std::size_t>(communicator_.size()));
  for (Rank rank = 0; rank < communicator_.size(); ++rank) memory.push_back(shared_->of(rank));
  const std::size_t bytes = memory.size() * sizeof(std::byte*);
  std::byte* const words = own_.data() + round_up(bytes, std::size_t{256});
  ACCORD_RETURN_IF_ERROR(runtime_.copy(own_.data(), memory.data(), bytes, device_, stream_));
  ACCORD_RETURN_IF_ERROR(runtime_.fill(words, 0, sizeof(OwnWords), device_, stream_));
  ACCORD_RETURN_IF_ERROR(runtime_.synchronize(device_, stream_));
  peers_ = {.memory = reinterpret_cast<std::byte**>(own_.data()),
            .stop = stop_.get(),
            .own = reinterpret_cast<OwnWords*>(words),
            .rank = communicator_.rank(),
            .size = communicator_.size(),
            .at = layout};
  return {};
}

DeviceDispatcher::~DeviceDispatcher() {
  // A kernel that is still running keeps using the memory of all ranks and the host's stop word: leak both.
  if (!own_.wait()) {
    (void)shared_.release();
    (void)new std::shared_ptr<const std::uint64_t>(stop_);  // NOLINT(bugprone-unhandled-exception-at-new)
  }
  if (stream_.handle != nullptr) (void)runtime_.destroy_stream(device_, stream_);
}

void DeviceDispatcher::wait_for_peers() {
  if (shared_ == nullptr || !own_.wait()) return;
  const Deadline deadline = Deadline::in(kPeersTimeout);
  OwnWords own;
  Waiter waiter(WaitPolicy::kYield);
  while (comm::failure_of(communicator_, "close").ok() && !deadline.passed()) {
    if (!launch(CountLate{peers_}, 1, stream_).ok()) return;
    if (!runtime_.copy(&own, peers_.own, sizeof(own), device_, stream_).ok()) return;
    if (!runtime_.synchronize(device_, stream_).ok()) return;
    if (own.failed != 0 || own.late == 0) return;
    (void)waiter.pause();
  }
}

Result<std::shared_ptr<Handle>> DeviceDispatcher::make_handle(const ExpertLayerConfig& layer) {
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMap> map, DeviceMap::create(runtime_, *setup_, layer, placement_));
  return std::shared_ptr<Handle>(std::make_shared<DeviceHandle>(layer, *setup_, std::move(map)));
}

Status DeviceDispatcher::add_window(const Window& /*window*/) {
  return {StatusCode::kUnsupported, "add_window: windows hold CPU memory, but the group's buffers are on GPUs"};
}

Status DeviceDispatcher::decline(const Status& why) {
  Communicator own = communicator_;
  own.abort(fmt::format("the rank cannot make its call: {}", why.message()));
  return {};
}

Status DeviceDispatcher::refused(Operation operation, const Status& arguments) const {
  const std::string_view name = to_string(operation);
  ACCORD_RETURN_IF_ERROR(comm::failure_of(communicator_, name));
  return {arguments.code(), fmt::format("{} on group \"{}\": {}", name, communicator_.name(), arguments.message())};
}

template <typename Kernel>
Status DeviceDispatcher::launch(const Kernel& kernel, std::int64_t items, Stream stream, std::size_t shared_bytes) {
  const std::int64_t blocks = std::clamp<std::int64_t>(quotient_up(items, Kernel::kThreads), 1, max_blocks_);
  const device::Grid grid{
      .blocks = static_cast<int>(blocks), .threads = Kernel::kThreads, .shared_bytes = shared_bytes};
  return device::launch(runtime_, kernel, grid, device_, stream);
}

template <typename Enqueue>
Status DeviceDispatcher::run(const DeviceHandle& handle, const Terms& terms, Stream stream, Enqueue enqueue) {
  const comm::KernelCall call{
      .device = device_,
      .stream = stream,
      .record = record_of(terms.operation, handle.number, handle.prepares,
                          {static_cast<std::uint8_t>(terms.dtype), static_cast<std::uint8_t>(terms.result),
                           static_cast<std::uint8_t>(terms.scales), static_cast<std::uint8_t>(terms.weights)}),
      .text = text_of,
      .alike = is_alike};
  ACCORD_ASSIGN_OR_RETURN(const std::shared_ptr<const device::Event> end, comm::run(communicator_, call, enqueue));
  own_.set_last_use(end);
  handle.device_map().set_last_use(end);
  return {};
}

Status DeviceDispatcher::number_slots(const Map& map, Stream stream) {
  const std::int64_t choices = std::int64_t{map.ranks} * map.max_tokens * map.top_k;
  const std::int64_t of_chunks = round_up(choices, kChunk), of_places = kWarp * map.places;
  constexpr std::size_t kShared = kChunk * sizeof(std::int32_t);
  const auto lay_out = [&](Pass pass) -> Status {
    ACCORD_RETURN_IF_ERROR(launch(CountChunks{peers_, map, pass}, of_chunks, stream, kShared));
    ACCORD_RETURN_IF_ERROR(launch(ScanChunks{peers_, map, pass}, of_places, stream));
    return launch(LayOut{peers_, map, pass}, 1, stream);
  };
  ACCORD_RETURN_IF_ERROR(lay_out(Pass::kAll));
  if (map.dropping == Dropping::kByWeight) {
    ACCORD_RETURN_IF_ERROR(launch(DropLowest{peers_, map}, std::int64_t{DropLowest::kThreads} * map.ranks, stream));
    ACCORD_RETURN_IF_ERROR(
        launch(RestoreFitting{peers_, map}, std::int64_t{RestoreFitting::kThreads} * map.places, stream));
    ACCORD_RETURN_IF_ERROR(lay_out(Pass::kKept));
  }
  ACCORD_RETURN_IF_ERROR(launch(NumberSlots{peers_, map}, of_chunks, stream, kShared));
  return launch(OrderChoices{peers_, map}, map.max_tokens, stream);
}

Status DeviceDispatcher::prepare(Handle& handle, const ExpertRouting& routing, const Status& arguments) {
  if (!arguments.ok()) return refused(Operation::kPrepare, arguments);
  auto& mine = static_cast<DeviceHandle&>(handle);
  const Map& map = mine.device_map().map();
  const auto tokens = static_cast<std::int64_t>(routing.ids.count) / map.top_k;
  const bool by_weight = map.dropping == Dropping::kByWeight;
  const ShareRouting share{.peers = peers_,
                           .ids = routing.ids.data,
                           .wide = routing.ids.dtype == DType::kInt64,
                           .weights = by_weight ? static_cast<const float*>(routing.weights.data) : nullptr,
                           .tokens = tokens,
                           .top_k = map.top_k,
                           .experts = map.experts};
  const auto enqueue = [&]() -> Status {
    const std::int64_t choices = std::int64_t{map.ranks} * map.max_tokens * map.top_k;
    // The numbers are negative until the map is built. The kernels of a failed group leave them that way.
    ACCORD_RETURN_IF_ERROR(runtime_.fill(map.numbers, 0xFF, sizeof(MapNumbers), device_, routing.stream));
    ACCORD_RETURN_IF_ERROR(launch(AwaitRead{peers_}, 1, routing.stream));
    ACCORD_RETURN_IF_ERROR(launch(share, tokens * map.top_k, routing.stream));
    ACCORD_RETURN_IF_ERROR(launch(MeetPeers{peers_, true, tokens}, 1, routing.stream));
    ACCORD_RETURN_IF_ERROR(launch(PlaceChoices{peers_, map}, choices, routing.stream));
    ACCORD_RETURN_IF_ERROR(launch(LeavePeers{peers_}, 1, routing.stream));
    return number_slots(map, routing.stream);
  };
  ACCORD_RETURN_IF_ERROR(run(mine, {}, routing.stream, enqueue));
  mine.set_prepared(tokens, routing.stream);
  handle.generation = handle.prepares + 1;
  return {};
}

Status DeviceDispatcher::send_rows(const DeviceHandle& handle, const Move& move, const ConstRows& tokens,
                                   const Rows& slots) {
  const Map& map = handle.device_map().map();
  const auto enqueue = [&]() -> Status {
    ACCORD_RETURN_IF_ERROR(launch(AwaitRead{peers_}, 1, move.stream));
    ACCORD_RETURN_IF_ERROR(launch(StageTokens{peers_, map, tokens, move.bytes}, kWarp * handle.tokens(), move.stream));
    ACCORD_RETURN_IF_ERROR(launch(MeetPeers{peers_}, 1, move.stream));
    const std::int64_t rows = std::min(move.room, map.max_rows);
    ACCORD_RETURN_IF_ERROR(launch(PullSlots{peers_, map, slots, move.room, move.bytes}, kWarp * rows, move.stream));
    return launch(LeavePeers{peers_}, 1, move.stream);
  };
  ACCORD_RETURN_IF_ERROR(run(handle, move.terms, move.stream, enqueue));
  ++report_.statistics.calls;
  return {};
}

template <typename Finish>
Status DeviceDispatcher::return_rows(const DeviceHandle& handle, const Move& move, const ConstRows& slots,
                                     Finish finish) {
  const Map& map = handle.device_map().map();
  const auto enqueue = [&]() -> Status {
    ACCORD_RETURN_IF_ERROR(launch(AwaitRead{peers_}, 1, move.stream));
    ACCORD_RETURN_IF_ERROR(
        launch(PushSlots{peers_, map, slots, move.room, move.bytes}, kWarp * map.max_rows, move.stream));
    ACCORD_RETURN_IF_ERROR(launch(MeetPeers{peers_}, 1, move.stream));
    ACCORD_RETURN_IF_ERROR(finish());
    return launch(LeavePeers{peers_}, 1, move.stream);
  };
  ACCORD_RETURN_IF_ERROR(run(handle, move.terms, move.stream, enqueue));
  ++report_.statistics.calls;
  return {};
}

Status DeviceDispatcher::dispatch(const Handle& handle, const ExpertDispatch& call, const Status& arguments) {
  if (!arguments.ok()) return refused(Operation::kDispatch, arguments);
  const std::int64_t elements = handle.tokens() + rows_in(call.recv_tokens, config_.hidden);
  const Terms terms{.operation = Operation::kDispatch,
                    .dtype = call.tokens.dtype,
                    .result = call.recv_tokens.dtype,
                    .scales = given(call.scales, call.recv_scales, elements),
                    .weights = weights_given(call.weights, call.recv_weights, elements)};
  const Move move{.terms = terms,
                  .stream = call.stream,
                  .room = room_of(call.recv_tokens, config_.hidden, call.recv_scales, call.recv_weights),
                  .bytes = {.row = row_bytes(config_.hidden, call.tokens.dtype),
                            .scales = terms.scales == Given::kYes ? scale_bytes(config_.hidden) : 0,
                            .weight = weight_bytes(terms.weights)}};
  return send_rows(static_cast<const DeviceHandle&>(handle), move,
                   {bytes_of(call.tokens), bytes_of(call.scales), bytes_of(call.weights)},
                   {bytes_of(call.recv_tokens), bytes_of(call.recv_scales), bytes_of(call.recv_weights)});
}

Status DeviceDispatcher::combine_backward(const Handle& handle, const ExpertCombineBackward& call,
                                          const Status& arguments) {
  if (!arguments.ok()) return refused(Operation::kCombineBackward, arguments);
  const Move move{.terms = {.operation = Operation::kCombineBackward,
                            .dtype = call.grad.dtype,
                            .result = call.grad_expert_out.dtype},
                  .stream = call.stream,
                  .room = room_of(call.grad_expert_out, config_.hidden, {}, {}),
                  .bytes = {.row = row_bytes(config_.hidden, call.grad.dtype)}};
  return send_rows(static_cast<const DeviceHandle&>(handle), move, {.rows = bytes_of(call.grad)},
                   {.rows = bytes_of(call.grad_expert_out)});
}

Status DeviceDispatcher::combine(const Handle& handle, const ExpertCombine& call, const Status& arguments) {
  if (!arguments.ok()) return refused(Operation::kCombine, arguments);
  const auto& mine = static_cast<const DeviceHandle&>(handle);
  const bool scaled = is_float8(call.expert_out.dtype);
  const Move move{.terms = {.operation = Operation::kCombine,
                            .dtype = call.expert_out.dtype,
                            .result = call.result.dtype,
                            .scales = given(call.scales, {}, rows_in(call.expert_out, config_.hidden)),
                            .weights = weights_given(call.weights, {}, handle.tokens())},
                  .stream = call.stream,
                  .room = room_of(call.expert_out, config_.hidden, call.scales, {}),
                  .bytes = {.row = row_bytes(config_.hidden, call.expert_out.dtype),
                            .scales = scaled ? scale_bytes(config_.hidden) : 0}};
  const SumRows sum{.peers = peers_,
                    .map = mine.device_map().map(),
                    .dtype = call.expert_out.dtype,
                    .result_dtype = call.result.dtype,
                    .hidden = config_.hidden,
                    .scaled = scaled,
                    .weights = call.weights.data,
                    .wide_weights = call.weights.dtype == DType::kFloat64,
                    .result = call.result.data};
  return return_rows(mine, move, {bytes_of(call.expert_out), bytes_of(call.scales)},
                     [&] { return launch(sum, handle.tokens() * config_.hidden, call.stream); });
}

Status DeviceDispatcher::dispatch_backward(const Handle& handle, const ExpertDispatchBackward& call,
                                           const Status& arguments) {
  if (!arguments.ok()) return refused(Operation::kDispatchBackward, arguments);
  const auto& mine = static_cast<const DeviceHandle&>(handle);
  const Map& map = mine.device_map().map();
  const std::int64_t elements = handle.tokens() + rows_in(call.grad, config_.hidden);
  const Terms terms{.operation = Operation::kDispatchBackward,
                    .dtype = call.grad.dtype,
                    .result = call.grad_tokens.dtype,
                    .weights = weights_given(call.grad_recv_weights, call.grad_weights, elements)};
  const Move move{.terms = terms,
                  .stream = call.stream,
                  .room = room_of(call.grad, config_.hidden, {}, call.grad_recv_weights),
                  .bytes = {.row = row_bytes(config_.hidden, call.grad.dtype), .weight = weight_bytes(terms.weights)}};
  const SumRows sum{.peers = peers_,
                    .map = map,
                    .dtype = call.grad.dtype,
                    .result_dtype = call.grad_tokens.dtype,
                    .hidden = config_.hidden,
                    .result = call.grad_tokens.data};
  const CopyWeights copy{peers_, map, bytes_of(call.grad_weights), move.bytes.weight};
  return return_rows(mine, move, {bytes_of(call.grad), nullptr, bytes_of(call.grad_recv_weights)}, [&]() -> Status {
    ACCORD_RETURN_IF_ERROR(launch(sum, handle.tokens() * config_.hidden, call.stream));
    if (copy.weights == nullptr) return {};
    return launch(copy, kWarp * handle.tokens() * map.top_k, call.stream);
  });
}

}  // namespace accord::expert
