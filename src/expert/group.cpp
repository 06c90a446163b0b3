// In a call, each rank checks its arguments, the ranks meet, move rows, and finish together. Ranks report argument
// errors when they meet, so that no rank waits for one that has left.
#include "expert/group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/rounding.hpp"
#include "comm/internal.hpp"
#include "expert/checks.hpp"
#include "expert/rows_back.hpp"
#include "expert/rows_out.hpp"

namespace accord::expert {
namespace {

const std::byte* bytes_of(const ConstBuffer& buffer) { return static_cast<const std::byte*>(buffer.data); }
std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }

/// Whether a call has `buffer`. `elements`: the number that this rank would have in it.
Given given(const ConstBuffer& buffer, std::int64_t elements) {
  if (buffer.data != nullptr || buffer.count > 0) return Given::kYes;
  return elements > 0 ? Given::kNo : Given::kAny;
}
/// The same for two buffers that go together.
Given given(const ConstBuffer& one, const ConstBuffer& other, std::int64_t elements) {
  return given(one, elements) == Given::kYes ? Given::kYes : given(other, elements);
}

/// Kind of weights that a call has.
Given weights_given(const ConstBuffer& one, const ConstBuffer& other, std::int64_t elements) {
  const Given any = given(one, other, elements);
  const DType dtype = given(one, 1) == Given::kYes ? one.dtype : other.dtype;
  return any == Given::kYes && dtype == DType::kFloat64 ? Given::kFloat64 : any;
}

std::uint8_t number(DType dtype) { return static_cast<std::uint8_t>(dtype); }

RowSize row_size(int hidden, DType dtype, bool scales) {
  return {row_bytes(hidden, dtype), scales ? sizeof(float) * to_size(scales_of_row(hidden)) : 0};
}

}  // namespace

class Group::CallGuard {
 public:
  explicit CallGuard(Group& group) : group_(group), entered_(!group.busy_.test_and_set(std::memory_order_acquire)) {}
  ~CallGuard() {
    if (entered_) group_.busy_.clear(std::memory_order_release);
  }
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
  Status status() const {
    if (entered_) return {};
    return {StatusCode::kWrongState,
            fmt::format("expert group \"{}\": another thread is in a call", group_.communicator_.name())};
  }

 private:
  Group& group_;
  const bool entered_;
};

ExpertStatistics Group::statistics() const {
  ExpertStatistics statistics = statistics_;
  statistics.wait_seconds.assign(rendezvous_.waits().begin(), rendezvous_.waits().end());
  return statistics;
}

Report Group::report() const {
  Report report = report_;
  report.statistics = statistics();
  return report;
}

Status Group::add_window(const Window& window) {
  const CallGuard guard(*this);
  ACCORD_RETURN_IF_ERROR(guard.status());
  if (device_ != nullptr)
    return {StatusCode::kUnsupported, "add_window: windows hold CPU memory, but the group's buffers are on GPUs"};
  const auto check = [&]() -> Status {
    if (window.size() != size() || window.rank() != rank())
      return {StatusCode::kInvalidArgument, fmt::format("the window's rank is {} of {}, but the group's is {} of {}",
                                                        window.rank(), window.size(), rank(), size())};
    for (const Rank r : domains_.ranks(domains_.of(rank())))
      if (window.bytes(r) > 0 && window.peer(r).empty())
        return {StatusCode::kUnsupported, fmt::format("the memory of rank {} is not mapped here", r)};
    return {};
  };
  ACCORD_RETURN_IF_ERROR(rendezvous_.meet({.operation = Operation::kAddWindow,
                                           .handle = static_cast<std::uint32_t>(window.number()),
                                           .generation = static_cast<std::uint32_t>(comm::communicator_id_of(window))},
                                          check()));
  windows_.push_back(window);
  return {};
}

Result<std::shared_ptr<Handle>> Group::make_handle(ExpertLayerConfig layer) {
  const CallGuard guard(*this);
  ACCORD_RETURN_IF_ERROR(guard.status());
  Result<ExpertLayerConfig> resolved = resolve(layer, config_);
  if (!resolved.ok()) return resolved.status().with_context("expert handle");
  auto handle = std::make_shared<Handle>();
  handle->group = id_;
  handle->number = handles_++;
  handle->rank = rank();
  handle->layer = *resolved;
  handle->placement = placement_;
  handle->group_name = communicator_.name();
  handle->reserve(config_);
  if (device_ != nullptr) {
    ACCORD_ASSIGN_OR_RETURN(handle->device, device_->make_map(handle->layer, *placement_));
  }
  return handle;
}

template <typename Call>
Status Group::checked(const Call& call, const Handle& handle) const {
  if (handle.group == id_) return check(call, handle, config_);
  return {StatusCode::kInvalidArgument, fmt::format("handle {} belongs to another group", handle.number)};
}

exec::PlaceWord Group::place_of(const ConstBuffer& buffer) const {
  const auto* const data = static_cast<const std::byte*>(buffer.data);
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    const std::span<const std::byte> local = windows_[i].local();
    const auto offset = static_cast<std::size_t>(data - local.data());
    if (data >= local.data() && offset <= local.size() && buffer.bytes() <= local.size() - offset)
      return exec::place_word(static_cast<int>(i), offset);
  }
  return exec::kNoPlace;
}

std::byte* Group::address(exec::PlaceWord place, Rank rank) const {
  return windows_[static_cast<std::size_t>(exec::window_of(place))].peer(rank).data() + exec::offset_of(place);
}

std::span<std::byte> Group::staging(Rank rank, std::int64_t round) const {
  const std::span<std::byte> memory = staging_.peer(rank);
  const std::size_t half = memory.size() / 2 / 64 * 64;
  return memory.subspan(to_size(round % 2) * half, half);
}

Status Group::prepare(Handle& handle, const ExpertRouting& routing) {
  const CallGuard guard(*this);
  ACCORD_RETURN_IF_ERROR(guard.status());
  if (device_ != nullptr) {
    ACCORD_RETURN_IF_ERROR(on_device("prepare", routing, handle));
    ACCORD_RETURN_IF_ERROR(device_->prepare(handle, routing));
    handle.generation = ++handle.prepares;
    handle.prepared = true;
    return {};
  }
  CallRecord record{.operation = Operation::kPrepare, .handle = handle.number, .generation = handle.prepares};
  ExpertRankCounts counts;
  if (handle.group == id_) handle.prepared = false;
  const Status arguments = checked(routing, handle);
  if (arguments.ok()) {
    record.tokens = static_cast<std::int64_t>(routing.ids.count) / handle.layer.top_k;
    read_ids(routing.ids, handle.layer.top_k, config_.experts, ids_, counts);
    record.out_of_range = counts.out_of_range;
    record.duplicates = counts.duplicates;
  }
  ACCORD_RETURN_IF_ERROR(rendezvous_.meet(record, arguments));
  ACCORD_RETURN_IF_ERROR(gather_ids(handle));
  route(handle.routing, *placement_);
  if (handle.routing.overflows) ACCORD_RETURN_IF_ERROR(overflow(handle, routing.weights));

  // The ids of all ranks decide, so all ranks agree on whether the handle has the same map as before.
  const std::uint64_t before = handle.fingerprint;
  handle.add_up();
  if (handle.generation == 0 || handle.fingerprint != before) ++handle.generation;
  add(handle, report_);
  statistics_.dropped += handle.routing.ranks[rank()].dropped;
  ++handle.prepares;
  handle.prepared = true;
  return {};
}

Status Group::decline(Handle& handle, bool prepares, const Status& why) {
  const CallGuard guard(*this);
  ACCORD_RETURN_IF_ERROR(guard.status());
  if (prepares && handle.group == id_) handle.prepared = false;
  if (device_ != nullptr) {  // kernels of other ranks may already be waiting
    communicator_.abort(fmt::format("the rank cannot make its call: {}", why.message()));
    return {};
  }
  const Status status = rendezvous_.meet({.operation = Operation::kDecline}, why);
  return communicator_.status().ok() ? Status() : status;
}

Status Group::gather_ids(Handle& handle) {
  Routing& routing = handle.routing;
  const std::span<const CallRecord> records = rendezvous_.records();
  for (Rank r = 0; r < size(); ++r) {
    routing.first_token[r + 1] = routing.first_token[r] + records[r].tokens;
    routing.ranks[r].out_of_range = records[r].out_of_range;
    routing.ranks[r].duplicates = records[r].duplicates;
    counts_[r] = to_size(records[r].tokens * handle.layer.top_k);
  }
  return communicator_.all_gather_v({ids_.data(), counts_[rank()], DType::kInt32},
                                    {routing.expert.data(), to_size(routing.choices()), DType::kInt32, {}}, counts_);
}

Status Group::overflow(Handle& handle, const ConstBuffer& weights) {
  switch (config_.overflow) {
    case OverflowPolicy::kDropBySlot: drop_by_slot(handle.routing, *placement_); return {};
    case OverflowPolicy::kDropByWeight:
      ACCORD_RETURN_IF_ERROR(gather_token_weights(handle, weights));
      drop_by_weight(handle.routing, *placement_, gathered_weights_);
      return {};
    case OverflowPolicy::kFail: break;
  }
  return overflow_error(handle.routing, communicator_.name());
}

template <typename Call>
Status Group::on_device(std::string_view operation, const Call& call, const Handle& handle) {
  const Status arguments = checked(call, handle);
  if (arguments.ok()) return {};
  return Status(arguments.code(),
                fmt::format("{} on group \"{}\": {}", operation, communicator_.name(), arguments.message()));
}

template <typename Call>
Status Group::run_on_device(Status (DeviceGroup::*move)(const Handle&, const Call&), std::string_view operation,
                            const Call& call, const Handle& handle) {
  const CallGuard guard(*this);
  ACCORD_RETURN_IF_ERROR(guard.status());
  ACCORD_RETURN_IF_ERROR(on_device(operation, call, handle));
  ACCORD_RETURN_IF_ERROR((device_.get()->*move)(handle, call));
  ++statistics_.calls;
  return {};
}

template <typename Move>
Status Group::run(CallRecord record, const Handle& handle, const Status& arguments, Move move) {
  const CallGuard guard(*this);
  ACCORD_RETURN_IF_ERROR(guard.status());
  record.handle = handle.number;
  record.generation = handle.prepares;
  ACCORD_RETURN_IF_ERROR(rendezvous_.meet(record, arguments));
  ACCORD_RETURN_IF_ERROR(move().with_context(to_string(record.operation)));
  ACCORD_RETURN_IF_ERROR(rendezvous_.finish().with_context(to_string(record.operation)));
  const bool to_experts = record.operation == Operation::kDispatch || record.operation == Operation::kCombineBackward;
  std::int64_t there = 0, here = 0;  // rows of this rank's tokens elsewhere, and of other ranks' tokens here
  for (Rank r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    there += handle.traffic_from_to(rank(), r);
    here += handle.traffic_from_to(r, rank());
  }
  const auto row = static_cast<std::int64_t>(row_bytes(config_.hidden, static_cast<DType>(record.dtype)));
  statistics_.rows_sent += to_experts ? there : here;
  statistics_.rows_received += to_experts ? here : there;
  statistics_.bytes_sent += row * (to_experts ? there : here);
  statistics_.bytes_received += row * (to_experts ? here : there);
  ++statistics_.calls;
  return {};
}

Status Group::dispatch(const Handle& handle, const ExpertDispatch& call) {
  if (device_ != nullptr) return run_on_device(&DeviceGroup::dispatch, "dispatch", call, handle);
  const Status arguments = checked(call, handle);
  const std::int64_t elements = arguments.ok() ? handle.tokens() + handle.recv_rows() : 0;
  const CallRecord record{.operation = Operation::kDispatch,
                          .dtype = number(call.tokens.dtype),
                          .result_dtype = number(call.recv_tokens.dtype),
                          .scales = given(call.scales, call.recv_scales, elements),
                          .weights = weights_given(call.weights, call.recv_weights, elements),
                          .input = place_of(call.tokens),
                          .input_scales = place_of(call.scales),
                          .output = place_of(call.recv_tokens),
                          .output_scales = place_of(call.recv_scales)};
  return run(record, handle, arguments, [&]() -> Status {
    const RowSize size = row_size(config_.hidden, call.tokens.dtype, rendezvous_.has_scales());
    ACCORD_RETURN_IF_ERROR(RowsOut(*this, handle, size, {bytes_of(call.tokens), bytes_of(call.scales)},
                                   {bytes_of(call.recv_tokens), bytes_of(call.recv_scales)})
                               .run());
    return rendezvous_.has_weights() ? deliver_weights(handle, call.weights, call.recv_weights) : Status();
  });
}

Status Group::combine(const Handle& handle, const ExpertCombine& call) {
  if (device_ != nullptr) return run_on_device(&DeviceGroup::combine, "combine", call, handle);
  const Status arguments = checked(call, handle);
  const std::int64_t tokens = arguments.ok() ? handle.tokens() : 0, rows = arguments.ok() ? handle.recv_rows() : 0;
  const CallRecord record{.operation = Operation::kCombine,
                          .dtype = number(call.expert_out.dtype),
                          .result_dtype = number(call.result.dtype),
                          .scales = given(call.scales, rows),
                          .weights = weights_given(call.weights, {}, tokens),
                          .input = place_of(call.expert_out),
                          .input_scales = place_of(call.scales)};
  return run(record, handle, arguments, [&]() -> Status {
    if (rendezvous_.has_weights()) ACCORD_RETURN_IF_ERROR(gather_token_weights(handle, call.weights));
    return RowsBack(*this, handle,
                    {.slots = {bytes_of(call.expert_out), bytes_of(call.scales)},
                     .dtype = call.expert_out.dtype,
                     .hidden = config_.hidden,
                     .size = row_size(config_.hidden, call.expert_out.dtype, rendezvous_.has_scales()),
                     .weighted = rendezvous_.has_weights(),
                     .result = bytes_of(call.result),
                     .result_dtype = call.result.dtype})
        .run();
  });
}

Status Group::dispatch_backward(const Handle& handle, const ExpertDispatchBackward& call) {
  if (device_ != nullptr) return run_on_device(&DeviceGroup::dispatch_backward, "dispatch_backward", call, handle);
  const Status arguments = checked(call, handle);
  const std::int64_t elements = arguments.ok() ? handle.tokens() + handle.recv_rows() : 0;
  const CallRecord record{.operation = Operation::kDispatchBackward,
                          .dtype = number(call.grad.dtype),
                          .result_dtype = number(call.grad_tokens.dtype),
                          .weights = weights_given(call.grad_recv_weights, call.grad_weights, elements),
                          .input = place_of(call.grad)};
  return run(record, handle, arguments, [&]() -> Status {
    ACCORD_RETURN_IF_ERROR(RowsBack(*this, handle,
                                    {.slots = {bytes_of(call.grad), nullptr},
                                     .dtype = call.grad.dtype,
                                     .hidden = config_.hidden,
                                     .size = row_size(config_.hidden, call.grad.dtype, false),
                                     .result = bytes_of(call.grad_tokens),
                                     .result_dtype = call.grad_tokens.dtype})
                               .run());
    return rendezvous_.has_weights() ? return_weights(handle, call.grad_recv_weights, call.grad_weights) : Status();
  });
}

Status Group::combine_backward(const Handle& handle, const ExpertCombineBackward& call) {
  if (device_ != nullptr) return run_on_device(&DeviceGroup::combine_backward, "combine_backward", call, handle);
  const Status arguments = checked(call, handle);
  const CallRecord record{.operation = Operation::kCombineBackward,
                          .dtype = number(call.grad.dtype),
                          .result_dtype = number(call.grad_expert_out.dtype),
                          .input = place_of(call.grad),
                          .output = place_of(call.grad_expert_out)};
  return run(record, handle, arguments, [&] {
    return RowsOut(*this, handle, row_size(config_.hidden, call.grad.dtype, false), {bytes_of(call.grad), nullptr},
                   {bytes_of(call.grad_expert_out), nullptr})
        .run();
  });
}

}  // namespace accord::expert
