// Expert parallelism for C callers. The lengths of arrays follow from the group and the map; everything else is
// checked behind the C++ interface.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "accord/accord.h"
#include "accord/expert_parallel.hpp"
#include "c/answer.hpp"
#include "c/handles.hpp"
#include "c/numbers.hpp"
#include "c/structs.hpp"

using accord::DType;
using accord::ExpertGroup;
using accord::ExpertGroupConfig;
using accord::ExpertHandle;
using accord::Result;
using accord::Status;
using accord::StatusCode;
using accord::c::answer;
using accord::c::invalid_argument;

namespace c = accord::c;

namespace {

/// Returns the dtype of `number`, or `default_value` for 0.
Result<DType> dtype_or(accord_dtype_t number, DType default_value, std::string_view function, std::string_view what) {
  if (number == 0) return default_value;
  return c::value_of(c::kDTypes, number, function, what);
}

Result<ExpertGroupConfig> config_of(const accord_expert_config_t* given, int ranks, std::string_view function) {
  if (given == nullptr) return c::null_argument(function, "config");
  ACCORD_ASSIGN_OR_RETURN(const accord_expert_config_t read, c::read_struct(given, function));
  ExpertGroupConfig config;
  config.experts = read.experts;
  config.top_k = read.top_k;
  config.hidden = read.hidden;
  config.max_tokens_per_rank = read.max_tokens_per_rank;
  config.max_recv_rows = read.max_recv_rows;
  if (read.alignment != 0) config.alignment = read.alignment;
  ACCORD_ASSIGN_OR_RETURN(config.dtype, dtype_or(read.dtype, DType::kBFloat16, function, "dtype"));
  ACCORD_ASSIGN_OR_RETURN(config.overflow, c::value_of(c::kOverflowPolicies, read.overflow, function, "overflow"));
  ACCORD_ASSIGN_OR_RETURN(config.algorithm, c::value_of(c::kExpertAlgorithms, read.algorithm, function, "algorithm"));
  config.staging_bytes = read.staging_bytes;
  config.ranks_per_host = read.ranks_per_host;
  ACCORD_ASSIGN_OR_RETURN(config.device, c::device_of(read.device, read.device_index, function));
  if ((read.placement == nullptr) != (read.placement_counts == nullptr))
    return invalid_argument(function, "placement and placement_counts are given together or not at all");
  if (read.placement == nullptr) return config;
  const int32_t* next = read.placement;
  for (int rank = 0; rank < ranks; ++rank) {
    const int32_t count = read.placement_counts[rank];
    if (count < 0) return invalid_argument(function, fmt::format("placement_counts[{}] is {}", rank, count));
    config.placement.emplace_back(next, next + count);
    next += count;
  }
  return config;
}

/// Checks that the array that a call fills has the required length.
Status check_count(std::string_view function, std::size_t given, std::int64_t needed) {
  if (given == static_cast<std::size_t>(needed)) return {};
  return invalid_argument(function, fmt::format("count is {}, it has to be {}", given, needed));
}

Result<const ExpertHandle*> prepared(const accord_expert_handle_t* handle, std::string_view function) {
  if (handle->handle.prepared()) return &handle->handle;
  return Status(StatusCode::kWrongState, fmt::format("{}: the handle is not prepared", function));
}

void copy_choices(std::span<const accord::ExpertChoice> from, accord_expert_choice_t* to) {
  std::transform(from.begin(), from.end(), to, [](const accord::ExpertChoice& choice) {
    return accord_expert_choice_t{choice.rank, choice.token, choice.k};
  });
}

/// The arrays of a call as buffers. Omitted arrays are empty.
struct Rows {
  accord::Buffer tokens, slots, weights, recv_weights, scales, recv_scales;
  accord::Stream stream;
};

bool is_on_device(const accord_expert_group_t* group) {
  return group->group.config().device.type != accord::DeviceType::kCpu;
}

/// Rows of tokens are copied to slots, or rows of slots are added up for tokens.
enum class RowDirection { kToSlots, kToTokens };

/// A call that moves rows, as the caller made it.
struct RowsCall {
  std::string_view function;
  accord_expert_group_t* group = nullptr;
  accord_expert_handle_t* handle = nullptr;
  const accord_expert_rows_t* rows = nullptr;
};

Result<Rows> rows_of(const RowsCall& call, RowDirection direction) {
  const auto& [function, group, handle, given] = call;
  if (given == nullptr) return c::null_argument(function, "rows");
  ACCORD_ASSIGN_OR_RETURN(const accord_expert_rows_t read, c::read_struct(given, function));
  Rows rows;
  // Lengths are unknown if the handle is not prepared; the call itself is rejected then, on all ranks. On devices, a
  // map that overflows does not cause a rejection.
  if (!handle->handle.prepared() && !is_on_device(group)) return rows;
  ACCORD_ASSIGN_OR_RETURN(const DType dtype, c::value_of(c::kDTypes, read.dtype, function, "dtype"));
  ACCORD_ASSIGN_OR_RETURN(const DType result, dtype_or(read.result_dtype, dtype, function, "result_dtype"));
  ACCORD_ASSIGN_OR_RETURN(const DType weights,
                          dtype_or(read.weights_dtype, DType::kFloat32, function, "weights_dtype"));
  const auto hidden = static_cast<std::size_t>(group->group.config().hidden);
  const auto tokens = static_cast<std::size_t>(handle->handle.tokens());
  const auto slots = static_cast<std::size_t>(read.recv_capacity > 0 ? read.recv_capacity : handle->handle.recv_rows());
  const std::size_t scales = (hidden + 127) / 128;
  const accord::Device device = group->group.config().device;
  const auto buffer = [device](void* data, std::size_t count, DType type) {
    return accord::Buffer{data, data == nullptr ? 0 : count, type, device};
  };
  rows.stream = {read.stream};
  rows.tokens = buffer(read.tokens, tokens * hidden, direction == RowDirection::kToTokens ? result : dtype);
  rows.slots = buffer(read.slots, slots * hidden, dtype);
  rows.weights = buffer(read.weights, tokens * static_cast<std::size_t>(handle->handle.top_k()), weights);
  rows.recv_weights = buffer(read.recv_weights, slots, weights);
  rows.scales = buffer(read.scales, tokens * scales, DType::kFloat32);
  rows.recv_scales = buffer(read.recv_scales, slots * scales, DType::kFloat32);
  return rows;
}

Result<accord::ExpertRouting> routing_of(const accord_expert_group_t* group, const accord_expert_handle_t* handle,
                                         const accord_expert_routing_t* given, std::string_view function) {
  if (given == nullptr) return c::null_argument(function, "routing");
  ACCORD_ASSIGN_OR_RETURN(const accord_expert_routing_t read, c::read_struct(given, function));
  ACCORD_ASSIGN_OR_RETURN(const DType dtype, dtype_or(read.ids_dtype, DType::kInt64, function, "ids_dtype"));
  if (read.tokens < 0) return invalid_argument(function, fmt::format("tokens is {}", read.tokens));
  const std::size_t choices = static_cast<std::size_t>(read.tokens) * static_cast<std::size_t>(handle->handle.top_k());
  const accord::Device device = group->group.config().device;
  accord::ExpertRouting call{.ids = {read.ids, choices, dtype, device}, .stream = {read.stream}};
  if (read.weights != nullptr) call.weights = {read.weights, choices, DType::kFloat32, device};
  return call;
}

enum class Declined { kPrepare, kMove };

/// Notifies the ranks that arrive at the call that this one cannot make it, and returns the reason. On devices no
/// rank is waiting at this point.
Status decline(accord_expert_group_t* group, const accord_expert_handle_t* handle, Declined declined,
               const Status& why) {
  if (is_on_device(group)) return why;
  const Status status = group->group.decline(handle->handle, declined == Declined::kPrepare, why);
  return status.ok() ? why : status;
}

/// Implements a call that moves rows: `move` makes it with the caller's arrays as buffers.
template <typename Move>
accord_status_t move_rows(const RowsCall& call, RowDirection direction, Move move) {
  return answer(call.function, {{"group", call.group}, {"handle", call.handle}}, [&](std::string_view) -> Status {
    const Result<Rows> rows = rows_of(call, direction);
    if (!rows.ok()) return decline(call.group, call.handle, Declined::kMove, rows.status());
    return move(call.group->group, call.handle->handle, *rows);
  });
}

}  // namespace

extern "C" accord_status_t accord_expert_group_create(accord_communicator_t* communicator,
                                                      const accord_expert_config_t* config,
                                                      accord_expert_group_t** group) {
  if (group != nullptr) *group = nullptr;
  return answer(__func__, {{"communicator", communicator}, {"group", group}}, [&](std::string_view function) -> Status {
    accord::Communicator& borrowed = communicator->communicator;
    ACCORD_ASSIGN_OR_RETURN(ExpertGroup made,
                            ExpertGroup::create(borrowed, config_of(config, borrowed.size(), function)));
    *group = new accord_expert_group{std::move(made)};
    return {};
  });
}

extern "C" accord_status_t accord_expert_group_add_window(accord_expert_group_t* group, accord_window_t* window) {
  return answer(__func__, {{"group", group}, {"window", window}},
                [&](std::string_view) { return group->group.add_window(window->window); });
}

extern "C" accord_status_t accord_expert_group_statistics(accord_expert_group_t* group,
                                                          accord_expert_statistics_t* statistics) {
  return answer(__func__, {{"group", group}, {"statistics", statistics}}, [&](std::string_view function) {
    const accord::ExpertStatistics now = group->group.statistics();
    const accord_expert_statistics_t result = {sizeof result,  now.calls,          now.rows_sent, now.rows_received,
                                               now.bytes_sent, now.bytes_received, now.dropped};
    return c::write_struct(result, statistics, function);
  });
}

extern "C" accord_status_t accord_expert_group_waits(accord_expert_group_t* group, double* seconds, size_t count) {
  return answer(__func__, {{"group", group}, {"seconds", seconds}}, [&](std::string_view function) -> Status {
    ACCORD_RETURN_IF_ERROR(check_count(function, count, group->group.size()));
    const accord::ExpertStatistics now = group->group.statistics();
    std::copy(now.wait_seconds.begin(), now.wait_seconds.end(), seconds);
    return {};
  });
}

extern "C" accord_status_t accord_expert_group_close(accord_expert_group_t* group) {
  return answer(__func__, {{"group", group}}, [&](std::string_view) -> Status {
    group->group.close();
    return {};
  });
}

extern "C" void accord_expert_group_free(accord_expert_group_t* group) { delete group; }

extern "C" accord_status_t accord_expert_handle_create(accord_expert_group_t* group, const accord_expert_layer_t* layer,
                                                       accord_expert_handle_t** handle) {
  if (handle != nullptr) *handle = nullptr;
  return answer(__func__, {{"group", group}, {"handle", handle}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const accord_expert_layer_t read, c::read_struct(layer, function));
    ACCORD_ASSIGN_OR_RETURN(ExpertHandle made,
                            group->group.make_handle({.top_k = read.top_k, .alignment = read.alignment}));
    *handle = new accord_expert_handle{std::move(made)};
    return {};
  });
}

extern "C" void accord_expert_handle_free(accord_expert_handle_t* handle) { delete handle; }

extern "C" accord_status_t accord_expert_handle_map(accord_expert_handle_t* handle, accord_expert_map_t* map) {
  return answer(__func__, {{"handle", handle}, {"map", map}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const ExpertHandle* const it, prepared(handle, function));
    const accord_expert_map_t result = {sizeof result,
                                        it->tokens(),
                                        it->recv_rows(),
                                        it->total_rows(),
                                        static_cast<int64_t>(it->dropped().size()),
                                        it->generation(),
                                        static_cast<int32_t>(it->counts().size()),
                                        it->top_k(),
                                        it->fingerprint()};
    return c::write_struct(result, map, function);
  });
}

extern "C" accord_status_t accord_expert_handle_counts(accord_expert_handle_t* handle, int64_t* counts, int64_t* rows,
                                                       size_t count) {
  return answer(__func__, {{"handle", handle}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const ExpertHandle* const it, prepared(handle, function));
    ACCORD_RETURN_IF_ERROR(check_count(function, count, static_cast<std::int64_t>(it->counts().size())));
    if (counts != nullptr) std::copy(it->counts().begin(), it->counts().end(), counts);
    if (rows != nullptr) std::copy(it->rows().begin(), it->rows().end(), rows);
    return {};
  });
}

extern "C" accord_status_t accord_expert_handle_ranks(accord_expert_handle_t* handle,
                                                      accord_expert_rank_counts_t* ranks, size_t count) {
  return answer(__func__, {{"handle", handle}, {"ranks", ranks}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const ExpertHandle* const it, prepared(handle, function));
    ACCORD_RETURN_IF_ERROR(check_count(function, count, static_cast<std::int64_t>(it->ranks().size())));
    std::transform(it->ranks().begin(), it->ranks().end(), ranks, [](const accord::ExpertRankCounts& of_rank) {
      return accord_expert_rank_counts_t{of_rank.tokens,  of_rank.out_of_range, of_rank.duplicates,
                                         of_rank.dropped, of_rank.recv_rows,    of_rank.total_rows};
    });
    return {};
  });
}

extern "C" accord_status_t accord_expert_handle_dropped(accord_expert_handle_t* handle, accord_expert_choice_t* choices,
                                                        size_t count) {
  return answer(__func__, {{"handle", handle}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const ExpertHandle* const it, prepared(handle, function));
    ACCORD_RETURN_IF_ERROR(check_count(function, count, static_cast<std::int64_t>(it->dropped().size())));
    if (count == 0) return {};
    if (choices == nullptr) return c::null_argument(function, "choices");
    copy_choices(it->dropped(), choices);
    return {};
  });
}

extern "C" accord_status_t accord_expert_handle_sources(accord_expert_handle_t* handle, accord_expert_choice_t* choices,
                                                        size_t count) {
  return answer(__func__, {{"handle", handle}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const ExpertHandle* const it, prepared(handle, function));
    ACCORD_RETURN_IF_ERROR(check_count(function, count, it->recv_rows()));
    if (count == 0) return {};
    if (choices == nullptr) return c::null_argument(function, "choices");
    std::vector<accord::ExpertChoice> sources(count);
    it->sources(sources);
    copy_choices(sources, choices);
    return {};
  });
}

extern "C" accord_status_t accord_expert_handle_slots(accord_expert_handle_t* handle, int32_t* ranks, int32_t* slots,
                                                      size_t count) {
  return answer(__func__, {{"handle", handle}}, [&](std::string_view function) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const ExpertHandle* const it, prepared(handle, function));
    ACCORD_RETURN_IF_ERROR(check_count(function, count, it->tokens() * it->top_k()));
    if (count == 0) return {};
    if (ranks == nullptr) return c::null_argument(function, "ranks");
    if (slots == nullptr) return c::null_argument(function, "slots");
    it->slots({ranks, count}, {slots, count});
    return {};
  });
}

extern "C" accord_status_t accord_expert_handle_on_device(accord_expert_handle_t* handle,
                                                          accord_expert_device_map_t* map) {
  return answer(__func__, {{"handle", handle}, {"map", map}}, [&](std::string_view function) {
    const accord::ExpertDeviceMap there = handle->handle.on_device();
    const accord_expert_device_map_t result = {sizeof result, static_cast<const int64_t*>(there.counts.data),
                                               static_cast<const int64_t*>(there.numbers.data),
                                               static_cast<const uint64_t*>(there.fingerprint.data)};
    return c::write_struct(result, map, function);
  });
}

extern "C" accord_status_t accord_expert_handle_fetch(accord_expert_handle_t* handle, void* stream) {
  return answer(__func__, {{"handle", handle}}, [&](std::string_view) { return handle->handle.fetch({stream}); });
}

extern "C" accord_status_t accord_expert_prepare(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                 const accord_expert_routing_t* routing) {
  return answer(__func__, {{"group", group}, {"handle", handle}}, [&](std::string_view function) -> Status {
    const Result<accord::ExpertRouting> call = routing_of(group, handle, routing, function);
    return call.ok() ? group->group.prepare(handle->handle, *call)
                     : decline(group, handle, Declined::kPrepare, call.status());
  });
}

extern "C" accord_status_t accord_expert_dispatch(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                  const accord_expert_rows_t* rows) {
  return move_rows({__func__, group, handle, rows}, RowDirection::kToSlots,
                   [](ExpertGroup& experts, const ExpertHandle& map, const Rows& read) {
                     return experts.dispatch(map, {.tokens = read.tokens,
                                                   .scales = read.scales,
                                                   .weights = read.weights,
                                                   .recv_tokens = read.slots,
                                                   .recv_scales = read.recv_scales,
                                                   .recv_weights = read.recv_weights,
                                                   .stream = read.stream});
                   });
}

extern "C" accord_status_t accord_expert_combine(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                 const accord_expert_rows_t* rows) {
  return move_rows({__func__, group, handle, rows}, RowDirection::kToTokens,
                   [](ExpertGroup& experts, const ExpertHandle& map, const Rows& read) {
                     return experts.combine(map, {.expert_out = read.slots,
                                                  .scales = read.recv_scales,
                                                  .weights = read.weights,
                                                  .result = read.tokens,
                                                  .stream = read.stream});
                   });
}

extern "C" accord_status_t accord_expert_dispatch_backward(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                           const accord_expert_rows_t* rows) {
  return move_rows({__func__, group, handle, rows}, RowDirection::kToTokens,
                   [](ExpertGroup& experts, const ExpertHandle& map, const Rows& read) {
                     return experts.dispatch_backward(map, {.grad = read.slots,
                                                            .grad_recv_weights = read.recv_weights,
                                                            .grad_tokens = read.tokens,
                                                            .grad_weights = read.weights,
                                                            .stream = read.stream});
                   });
}

extern "C" accord_status_t accord_expert_combine_backward(accord_expert_group_t* group, accord_expert_handle_t* handle,
                                                          const accord_expert_rows_t* rows) {
  return move_rows({__func__, group, handle, rows}, RowDirection::kToSlots,
                   [](ExpertGroup& experts, const ExpertHandle& map, const Rows& read) {
                     return experts.combine_backward(
                         map, {.grad = read.tokens, .grad_expert_out = read.slots, .stream = read.stream});
                   });
}

extern "C" accord_status_t accord_balance_experts(const double* loads, int32_t experts, int32_t ranks, int32_t per_rank,
                                                  int32_t* placement) {
  return answer(__func__, {{"loads", loads}, {"placement", placement}}, [&](std::string_view function) -> Status {
    if (experts < 1) return invalid_argument(function, fmt::format("experts is {}", experts));
    ACCORD_ASSIGN_OR_RETURN(const accord::ExpertPlacement made,
                            accord::balance_experts({loads, static_cast<std::size_t>(experts)}, ranks, per_rank));
    for (const std::vector<int>& list : made) placement = std::copy(list.begin(), list.end(), placement);
    return {};
  });
}
