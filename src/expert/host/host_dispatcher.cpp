// Ranks report argument errors when they meet, so that no rank waits for one that has left. What a call omits is known
// to all ranks then.
#include "expert/host/host_dispatcher.hpp"

#include <algorithm>

#include "base/rounding.hpp"
#include "comm/internal.hpp"
#include "expert/config.hpp"
#include "expert/host/rows_back.hpp"
#include "expert/host/rows_out.hpp"

namespace accord::expert {
namespace {

std::uint8_t number(DType dtype) { return static_cast<std::uint8_t>(dtype); }

/// Bytes of staging memory per rank. Each half has room at least for one row of every rank, and for the pieces of one
/// token of every rank.
std::size_t staging_bytes(const GroupSetup& setup) {
  const ExpertGroupConfig& config = setup.config;
  const std::size_t row = row_bytes(config.hidden, config.dtype) + scale_bytes(config.hidden);
  const std::size_t piece = min_back_staging(config, max_nodes(*setup.placement, config.top_k));
  return std::max(config.staging_bytes, 2 * to_size(setup.size()) * round_up(std::max(row, piece), std::size_t{64}));
}

}  // namespace

HostDispatcher::HostDispatcher(std::shared_ptr<const GroupSetup> setup)
    : setup_(std::move(setup)),
      config_(setup_->config),
      ids_(to_size(config_.max_tokens_per_rank) * to_size(config_.top_k)),
      report_(start_report(*setup_)) {}

Status HostDispatcher::connect() {
  ACCORD_ASSIGN_OR_RETURN(SharedRows shared, SharedRows::create(*setup_, staging_bytes(*setup_)));
  state_.emplace(*setup_, std::move(shared));
  return {};
}

Result<std::shared_ptr<Handle>> HostDispatcher::make_handle(const ExpertLayerConfig& layer) {
  return std::make_shared<Handle>(layer, *setup_);
}

Status HostDispatcher::add_window(const Window& window) {
  ACCORD_RETURN_IF_ERROR(
      state_->rendezvous.meet({.operation = Operation::kAddWindow,
                               .handle = static_cast<std::uint32_t>(window.number()),
                               .generation = static_cast<std::uint32_t>(comm::communicator_id_of(window))},
                              state_->shared.check(window)));
  state_->shared.add(window);
  return {};
}

Status HostDispatcher::prepare(Handle& handle, const ExpertRouting& routing, const Status& arguments) {
  CallRecord record{.operation = Operation::kPrepare, .handle = handle.number, .generation = handle.prepares};
  if (arguments.ok()) {
    ExpertRankCounts counts;
    record.tokens = static_cast<std::int64_t>(routing.ids.count) / handle.layer.top_k;
    read_ids(routing.ids, handle.layer.top_k, config_.experts, ids_, counts);
    record.out_of_range = counts.out_of_range;
    record.duplicates = counts.duplicates;
  }
  ACCORD_RETURN_IF_ERROR(state_->rendezvous.meet(record, arguments));
  ACCORD_RETURN_IF_ERROR(gather_ids(handle));
  route(handle.routing, *handle.placement);
  if (handle.routing.overflows) ACCORD_RETURN_IF_ERROR(overflow(handle, routing.weights));

  // The ids of all ranks decide, so all ranks agree on whether the handle has the same map as before.
  const std::uint64_t before = handle.fingerprint;
  handle.add_up();
  if (handle.generation == 0 || handle.fingerprint != before) ++handle.generation;
  add(handle, report_);
  report_.statistics.dropped += handle.routing.ranks[handle.rank].dropped;
  return {};
}

Status HostDispatcher::gather_ids(Handle& handle) {
  Routing& routing = handle.routing;
  std::vector<std::size_t>& counts = state_->scratch.counts;
  const std::span<const CallRecord> records = state_->rendezvous.records();
  for (Rank r = 0; r < state_->size(); ++r) {
    routing.first_token[r + 1] = routing.first_token[r] + records[r].tokens;
    routing.ranks[r].out_of_range = records[r].out_of_range;
    routing.ranks[r].duplicates = records[r].duplicates;
    counts[r] = to_size(records[r].tokens * handle.layer.top_k);
  }
  return state_->communicator.all_gather_v({ids_.data(), counts[handle.rank], DType::kInt32},
                                           {routing.expert.data(), to_size(routing.choices()), DType::kInt32, {}},
                                           counts);
}

Status HostDispatcher::overflow(Handle& handle, const ConstBuffer& weights) {
  switch (config_.overflow) {
    case OverflowPolicy::kDropBySlot: drop_by_slot(handle.routing, *handle.placement); return {};
    case OverflowPolicy::kDropByWeight:
      ACCORD_RETURN_IF_ERROR(state_->weights.gather(handle, weights, state_->rendezvous.weights()));
      drop_by_weight(handle.routing, *handle.placement, state_->weights.values());
      return {};
    case OverflowPolicy::kFail: break;
  }
  return overflow_error(handle.routing, state_->communicator.name());
}

template <typename Move>
Status HostDispatcher::run(CallRecord record, const Handle& handle, const Status& arguments, Move move) {
  record.handle = handle.number;
  record.generation = handle.prepares;
  ACCORD_RETURN_IF_ERROR(state_->rendezvous.meet(record, arguments));
  ACCORD_RETURN_IF_ERROR(move().with_context(to_string(record.operation)));
  ACCORD_RETURN_IF_ERROR(state_->rendezvous.finish().with_context(to_string(record.operation)));
  const bool to_experts = record.operation == Operation::kDispatch || record.operation == Operation::kCombineBackward;
  std::int64_t there = 0, here = 0;  // rows of this rank's tokens elsewhere, and of other ranks' tokens here
  for (Rank r = 0; r < state_->size(); ++r) {
    if (r == handle.rank) continue;
    there += handle.traffic_from_to(handle.rank, r);
    here += handle.traffic_from_to(r, handle.rank);
  }
  const auto row = static_cast<std::int64_t>(row_bytes(config_.hidden, static_cast<DType>(record.dtype)));
  ExpertStatistics& statistics = report_.statistics;
  statistics.rows_sent += to_experts ? there : here;
  statistics.rows_received += to_experts ? here : there;
  statistics.bytes_sent += row * (to_experts ? there : here);
  statistics.bytes_received += row * (to_experts ? here : there);
  ++statistics.calls;
  return {};
}

RowBytes HostDispatcher::row_size(DType dtype) const {
  return {row_bytes(config_.hidden, dtype), state_->rendezvous.has_scales() ? scale_bytes(config_.hidden) : 0};
}

Status HostDispatcher::dispatch(const Handle& handle, const ExpertDispatch& call, const Status& arguments) {
  const std::int64_t elements = arguments.ok() ? handle.tokens() + handle.recv_rows() : 0;
  const CallRecord record{.operation = Operation::kDispatch,
                          .dtype = number(call.tokens.dtype),
                          .result_dtype = number(call.recv_tokens.dtype),
                          .scales = given(call.scales, call.recv_scales, elements),
                          .weights = weights_given(call.weights, call.recv_weights, elements),
                          .input = state_->shared.place_of(call.tokens),
                          .input_scales = state_->shared.place_of(call.scales),
                          .output = state_->shared.place_of(call.recv_tokens),
                          .output_scales = state_->shared.place_of(call.recv_scales)};
  return run(record, handle, arguments, [&]() -> Status {
    const OutCall rows{.tokens = {bytes_of(call.tokens), bytes_of(call.scales)},
                       .slots = {bytes_of(call.recv_tokens), bytes_of(call.recv_scales)},
                       .size = row_size(call.tokens.dtype)};
    ACCORD_RETURN_IF_ERROR(RowsOut(*state_, handle, rows).run());
    if (!state_->rendezvous.has_weights()) return {};
    return state_->weights.deliver(handle, call.weights, call.recv_weights, state_->rendezvous.weights());
  });
}

Status HostDispatcher::combine(const Handle& handle, const ExpertCombine& call, const Status& arguments) {
  const std::int64_t tokens = arguments.ok() ? handle.tokens() : 0, rows = arguments.ok() ? handle.recv_rows() : 0;
  const CallRecord record{.operation = Operation::kCombine,
                          .dtype = number(call.expert_out.dtype),
                          .result_dtype = number(call.result.dtype),
                          .scales = given(call.scales, {}, rows),
                          .weights = weights_given(call.weights, {}, tokens),
                          .input = state_->shared.place_of(call.expert_out),
                          .input_scales = state_->shared.place_of(call.scales)};
  return run(record, handle, arguments, [&]() -> Status {
    const bool weighted = state_->rendezvous.has_weights();
    if (weighted) ACCORD_RETURN_IF_ERROR(state_->weights.gather(handle, call.weights, state_->rendezvous.weights()));
    return RowsBack(*state_, handle,
                    {.slots = {bytes_of(call.expert_out), bytes_of(call.scales)},
                     .dtype = call.expert_out.dtype,
                     .hidden = config_.hidden,
                     .size = row_size(call.expert_out.dtype),
                     .weighted = weighted,
                     .result = bytes_of(call.result),
                     .result_dtype = call.result.dtype})
        .run();
  });
}

Status HostDispatcher::dispatch_backward(const Handle& handle, const ExpertDispatchBackward& call,
                                         const Status& arguments) {
  const std::int64_t elements = arguments.ok() ? handle.tokens() + handle.recv_rows() : 0;
  const CallRecord record{.operation = Operation::kDispatchBackward,
                          .dtype = number(call.grad.dtype),
                          .result_dtype = number(call.grad_tokens.dtype),
                          .weights = weights_given(call.grad_recv_weights, call.grad_weights, elements),
                          .input = state_->shared.place_of(call.grad)};
  return run(record, handle, arguments, [&]() -> Status {
    ACCORD_RETURN_IF_ERROR(RowsBack(*state_, handle,
                                    {.slots = {.rows = bytes_of(call.grad)},
                                     .dtype = call.grad.dtype,
                                     .hidden = config_.hidden,
                                     .size = row_size(call.grad.dtype),
                                     .result = bytes_of(call.grad_tokens),
                                     .result_dtype = call.grad_tokens.dtype})
                               .run());
    if (!state_->rendezvous.has_weights()) return {};
    return state_->weights.give_back(handle, call.grad_recv_weights, call.grad_weights, state_->rendezvous.weights());
  });
}

Status HostDispatcher::combine_backward(const Handle& handle, const ExpertCombineBackward& call,
                                        const Status& arguments) {
  const CallRecord record{.operation = Operation::kCombineBackward,
                          .dtype = number(call.grad.dtype),
                          .result_dtype = number(call.grad_expert_out.dtype),
                          .input = state_->shared.place_of(call.grad),
                          .output = state_->shared.place_of(call.grad_expert_out)};
  return run(record, handle, arguments, [&] {
    const OutCall rows{.tokens = {.rows = bytes_of(call.grad)},
                       .slots = {.rows = bytes_of(call.grad_expert_out)},
                       .size = row_size(call.grad.dtype)};
    return RowsOut(*state_, handle, rows).run();
  });
}

Status HostDispatcher::decline(const Status& why) {
  const Status status = state_->rendezvous.meet({.operation = Operation::kDecline}, why);
  return state_->communicator.status().ok() ? Status() : status;
}

ExpertStatistics HostDispatcher::statistics() const {
  ExpertStatistics statistics = report_.statistics;
  const std::span<const double> waits = state_->rendezvous.waits();
  statistics.wait_seconds.assign(waits.begin(), waits.end());
  return statistics;
}

Report HostDispatcher::report() const {
  Report report = report_;
  report.statistics = statistics();
  return report;
}

}  // namespace accord::expert
