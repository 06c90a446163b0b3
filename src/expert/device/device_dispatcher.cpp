#include "expert/device/device_dispatcher.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "expert/config.hpp"
#include "expert/device/collective_exchange.hpp"
#include "expert/device/peer_exchange.hpp"

namespace accord::expert {
namespace {

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

}  // namespace

DeviceDispatcher::DeviceDispatcher(std::shared_ptr<const GroupSetup> setup, KernelLauncher launcher,
                                   std::shared_ptr<DevicePlacement> placement)
    : setup_(std::move(setup)),
      config_(setup_->config),
      launcher_(std::move(launcher)),
      placement_(std::move(placement)),
      report_(start_report(*setup_)) {}

Result<std::unique_ptr<TokenDispatcher>> DeviceDispatcher::create(std::shared_ptr<const GroupSetup> setup) {
  ACCORD_ASSIGN_OR_RETURN(KernelLauncher launcher, KernelLauncher::create(setup));
  ACCORD_ASSIGN_OR_RETURN(const Stream stream, launcher.runtime().create_stream(launcher.device(), false));
  Result<std::shared_ptr<DevicePlacement>> placement =
      DevicePlacement::create(launcher.runtime(), launcher.device(), stream, *setup->placement);
  (void)launcher.runtime().destroy_stream(launcher.device(), stream);
  if (!placement.ok()) return placement.status();
  return std::unique_ptr<TokenDispatcher>(
      new DeviceDispatcher(std::move(setup), std::move(launcher), *std::move(placement)));
}

Status DeviceDispatcher::connect() {
  Status no_memory = connect_memory();
  if (no_memory.code() != StatusCode::kUnsupported || config_.algorithm == ExpertAlgorithm::kDirect) return no_memory;
  return connect_collectives(no_memory);
}

Status DeviceDispatcher::connect_memory() {
  if (config_.algorithm == ExpertAlgorithm::kAllToAll) return {StatusCode::kUnsupported, "algorithm is all_to_all"};
  Communicator own = setup_->communicator;
  if (const int hosts = comm::host_count(own); hosts > 1)
    return {StatusCode::kUnsupported, fmt::format("the ranks are on {} hosts", hosts)};
  Result<std::unique_ptr<RowExchange>> made = PeerExchange::create(launcher_);
  // Ranks may have different errors. All of them continue if the only reason is that memory cannot be reached.
  enum Outcome : std::int64_t { kFailed, kUnreachable, kConnected };
  std::int64_t outcome = made.ok() ? kConnected : kFailed;
  if (made.status().code() == StatusCode::kUnsupported) outcome = kUnreachable;
  ACCORD_RETURN_IF_ERROR(own.all_reduce(Buffer{&outcome, 1, DType::kInt64, {}}, ReduceOp::kMin));
  if (outcome == kFailed) return Rendezvous(own).meet({}, made.status());
  if (outcome == kConnected) {
    exchange_ = *std::move(made);
    return {};
  }
  if (!made.ok()) return made.status();
  return {StatusCode::kUnsupported, "another rank does not reach the memory of all ranks"};
}

Status DeviceDispatcher::connect_collectives(const Status& no_memory) {
  Result<std::unique_ptr<RowExchange>> made = CollectiveExchange::create(launcher_);
  if (!made.ok())
    return {
        made.status().code(),
        fmt::format("rows cannot be written into the memory of other ranks ({}) and cannot travel in collectives: {}",
                    no_memory.message(), made.status().message()),
        made.status().ranks()};
  exchange_ = *std::move(made);
  return {};
}

void DeviceDispatcher::wait_for_peers() {
  if (exchange_ != nullptr) exchange_->wait_for_peers();
}

Result<std::shared_ptr<Handle>> DeviceDispatcher::make_handle(const ExpertLayerConfig& layer) {
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMap> map,
                          DeviceMap::create(launcher_.runtime(), *setup_, layer, exchange_->path(), placement_));
  return std::shared_ptr<Handle>(std::make_shared<DeviceHandle>(layer, *setup_, std::move(map)));
}

Status DeviceDispatcher::add_window(const Window& /*window*/) {
  return {StatusCode::kUnsupported, "add_window: windows hold CPU memory, but the group's buffers are on GPUs"};
}

Status DeviceDispatcher::decline(const Status& why) {
  Communicator own = setup_->communicator;
  own.abort(fmt::format("the rank cannot make its call: {}", why.message()));
  return {};
}

Status DeviceDispatcher::refused(Operation operation, const Status& arguments) const {
  const std::string_view name = to_string(operation);
  ACCORD_RETURN_IF_ERROR(comm::failure_of(setup_->communicator, name));
  return {arguments.code(),
          fmt::format("{} on group \"{}\": {}", name, setup_->communicator.name(), arguments.message())};
}

Status DeviceDispatcher::prepare(Handle& handle, const ExpertRouting& routing, const Status& arguments) {
  if (!arguments.ok()) return refused(Operation::kPrepare, arguments);
  auto& mine = static_cast<DeviceHandle&>(handle);
  const Map& map = mine.device_map().map();
  const bool by_weight = map.dropping == Dropping::kByWeight;
  const RoutingInput input{.ids = routing.ids.data,
                           .wide = routing.ids.dtype == DType::kInt64,
                           .weights = by_weight ? static_cast<const float*>(routing.weights.data) : nullptr,
                           .tokens = static_cast<std::int64_t>(routing.ids.count) / map.top_k,
                           .top_k = map.top_k,
                           .experts = map.experts};
  ACCORD_RETURN_IF_ERROR(exchange_->prepare(mine, input, routing.stream));
  mine.set_prepared(input.tokens, routing.stream);
  handle.generation = handle.prepares + 1;
  return {};
}

Status DeviceDispatcher::send_rows(const Handle& handle, const Move& move, const ConstRows& tokens, const Rows& slots) {
  ACCORD_RETURN_IF_ERROR(exchange_->send_rows(static_cast<const DeviceHandle&>(handle), move, tokens, slots));
  ++report_.statistics.calls;
  return {};
}

Status DeviceDispatcher::return_rows(const Handle& handle, const Move& move, const ConstRows& slots,
                                     const RowSums& sums, std::byte* weights) {
  ACCORD_RETURN_IF_ERROR(exchange_->return_rows(static_cast<const DeviceHandle&>(handle), move, slots, sums, weights));
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
  return send_rows(handle, move, {bytes_of(call.tokens), bytes_of(call.scales), bytes_of(call.weights)},
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
  return send_rows(handle, move, {.rows = bytes_of(call.grad)}, {.rows = bytes_of(call.grad_expert_out)});
}

Status DeviceDispatcher::combine(const Handle& handle, const ExpertCombine& call, const Status& arguments) {
  if (!arguments.ok()) return refused(Operation::kCombine, arguments);
  const Move move{.terms = {.operation = Operation::kCombine,
                            .dtype = call.expert_out.dtype,
                            .result = call.result.dtype,
                            .scales = given(call.scales, {}, rows_in(call.expert_out, config_.hidden)),
                            .weights = weights_given(call.weights, {}, handle.tokens())},
                  .stream = call.stream,
                  .room = room_of(call.expert_out, config_.hidden, call.scales, {}),
                  .bytes = {.row = row_bytes(config_.hidden, call.expert_out.dtype),
                            .scales = is_float8(call.expert_out.dtype) ? scale_bytes(config_.hidden) : 0}};
  const RowSums sums{.dtype = call.expert_out.dtype,
                     .result_dtype = call.result.dtype,
                     .hidden = config_.hidden,
                     .weights = call.weights.data,
                     .wide_weights = call.weights.dtype == DType::kFloat64,
                     .result = call.result.data};
  return return_rows(handle, move, {bytes_of(call.expert_out), bytes_of(call.scales)}, sums, nullptr);
}

Status DeviceDispatcher::dispatch_backward(const Handle& handle, const ExpertDispatchBackward& call,
                                           const Status& arguments) {
  if (!arguments.ok()) return refused(Operation::kDispatchBackward, arguments);
  const std::int64_t elements = handle.tokens() + rows_in(call.grad, config_.hidden);
  const Terms terms{.operation = Operation::kDispatchBackward,
                    .dtype = call.grad.dtype,
                    .result = call.grad_tokens.dtype,
                    .weights = weights_given(call.grad_recv_weights, call.grad_weights, elements)};
  const Move move{.terms = terms,
                  .stream = call.stream,
                  .room = room_of(call.grad, config_.hidden, {}, call.grad_recv_weights),
                  .bytes = {.row = row_bytes(config_.hidden, call.grad.dtype), .weight = weight_bytes(terms.weights)}};
  const RowSums sums{.dtype = call.grad.dtype,
                     .result_dtype = call.grad_tokens.dtype,
                     .hidden = config_.hidden,
                     .result = call.grad_tokens.data};
  return return_rows(handle, move, {bytes_of(call.grad), nullptr, bytes_of(call.grad_recv_weights)}, sums,
                     bytes_of(call.grad_weights));
}

}  // namespace accord::expert
