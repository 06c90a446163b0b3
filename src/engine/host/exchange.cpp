#include "engine/ops/exchange.hpp"

#include <fmt/format.h>

#include <numeric>

#include "engine/host/expert_exchange.hpp"
#include "engine/host/run.hpp"
#include "engine/host/steps.hpp"
#include "engine/ops/collective_steps.hpp"

namespace accord::engine::host {
namespace {

// The ids that a model's router computes are valid. All ranks report invalid ids alike.
Status check_ids(const ExpertHandle& handle) {
  const std::span<const ExpertRankCounts> ranks = handle.ranks();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::int64_t out = ranks[rank].out_of_range, twice = ranks[rank].duplicates;
    if (out == 0 && twice == 0) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("rank {} has {} choices of {}", rank, out > 0 ? out : twice,
                              out > 0 ? "experts that do not exist" : "an expert that the same row has already chosen"),
                  {static_cast<Rank>(rank)});
  }
  return Status();
}

Status dispatch_rows(const DispatchRowsCall& dispatch, const Communicator& communicator, const Execution& execution) {
  const std::int64_t own_tokens = dispatch.tokens.size(0);
  const bool is_largest = execution.largest_batch_part <= dispatch.batch;
  ACCORD_ASSIGN_OR_RETURN(ExpertExchange* const exchange,
                          run_of(execution).exchanges->ensure_capacity(
                              dispatch.key, communicator, is_largest ? own_tokens : dispatch.tokens_of_largest));
  const ExpertHandle& handle = exchange->handle;
  ACCORD_RETURN_IF_ERROR(exchange->group.prepare(handle, {.ids = ConstBuffer(buffer_of(dispatch.ids, execution))}));
  ACCORD_RETURN_IF_ERROR(check_ids(handle));
  ACCORD_RETURN_IF_ERROR(
      exchange->group.dispatch(handle, {.tokens = ConstBuffer(buffer_of(dispatch.tokens, execution)),
                                        .weights = ConstBuffer(buffer_of(dispatch.weights, execution)),
                                        .recv_tokens = buffer_of(dispatch.rows, execution),
                                        .recv_weights = buffer_of(dispatch.row_weights, execution)}));
  auto* const first = execution.data<std::int64_t>(dispatch.first);
  first[0] = 0;
  std::partial_sum(handle.counts().begin(), handle.counts().end(), first + 1);
  return Status();
}

Status combine_rows(const CombineRowsCall& combine, const Execution& execution) {
  ExpertExchange* const exchange = run_of(execution).exchanges->find(combine.key);
  if (exchange == nullptr) return Status(StatusCode::kCorrupt, "combine was called without a dispatch before it");
  return exchange->group.combine(exchange->handle, {.expert_out = ConstBuffer(buffer_of(combine.results, execution)),
                                                    .result = buffer_of(combine.y, execution)});
}

Status add_dispatch_rows(Preparation& op, const DispatchRowsCall& call) {
  op.step(call_step(op.node(), call.key.group, [call](const Communicator& communicator, const Execution& execution) {
    return dispatch_rows(call, communicator, execution);
  }));
  return Status();
}

Status add_combine_rows(Preparation& op, const CombineRowsCall& call) {
  op.step(call_step(op.node(), call.key.group,
                    [call](const Communicator&, const Execution& execution) { return combine_rows(call, execution); }));
  return Status();
}

}  // namespace

void set_exchange_steps(StepTable& table) {
  table.set<DispatchRowsCall>(add_dispatch_rows);
  table.set<CombineRowsCall>(add_combine_rows);
}

}  // namespace accord::engine::host
