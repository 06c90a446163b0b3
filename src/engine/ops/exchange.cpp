// Sends the rows of ranks that share a batch to the experts chosen for them, and returns the results.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/graph/node_access.hpp"
#include "engine/ops/collective_steps.hpp"
#include "engine/host/expert_exchange.hpp"
#include "engine/ops/op_registry.hpp"

namespace accord::engine {
namespace {

constexpr std::initializer_list<DType> kExchangeRowTypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// `choices`: [tokens, top_k].
Result<ExchangeKey> key_of(const Preparation& op, const Tensor& rows, const Tensor& choices) {
  ACCORD_RETURN_IF_ERROR(op.require(rows, kExchangeRowTypes));
  ACCORD_ASSIGN_OR_RETURN(const std::optional<int> group, op.group("group"));
  ACCORD_ASSIGN_OR_RETURN(const std::int64_t experts, op.integer("experts_in_all"));
  if (!group || rows.dims() != 2 || choices.dims() != 2) return op.corrupt("its rows and choices do not fit");
  return ExchangeKey{*group, static_cast<int>(experts), static_cast<int>(choices.size(1)),
                     static_cast<int>(rows.size(1)), rows.dtype};
}

/// Everything but addresses.
struct Dispatch {
  ExchangeKey key;
  Tensor tokens, ids, weights;
  Tensor rows, row_weights, first;
  std::int64_t batch = 0;              // this rank's rows of the batch
  std::int64_t tokens_of_largest = 0;  // tokens of a rank that has one more row
};

// The ids that a model's router computes are valid. All ranks report invalid ids alike.
Status check_ids(const ExpertHandle& handle) {
  const std::span<const ExpertRankCounts> ranks = handle.ranks();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::int64_t out = ranks[rank].out_of_range, twice = ranks[rank].duplicates;
    if (out == 0 && twice == 0) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("rank {} has {} choices of {}", rank, out > 0 ? out : twice,
                              out > 0 ? "experts that there are not" : "an expert that the same row has chosen before"),
                  {static_cast<Rank>(rank)});
  }
  return Status();
}

Status run_dispatch(const Dispatch& dispatch, const Execution& execution) {
  const auto group = static_cast<std::size_t>(dispatch.key.group);
  const std::int64_t own_tokens = dispatch.tokens.size(0);
  const bool is_largest = execution.largest_batch_part <= dispatch.batch;
  ACCORD_ASSIGN_OR_RETURN(ExpertExchange* const exchange,
                          execution.exchanges->with_room(dispatch.key, *execution.communicators[group],
                                                         is_largest ? own_tokens : dispatch.tokens_of_largest));
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

template <typename Call>
void add_exchange(Preparation& op, Call call) {
  op.step_always([call, node = &op.node()](const Execution& execution) {
    const Status status = call(execution);
    return status.ok() ? status : status.with_context(node_text(*node));
  });
}

Status prepare_dispatch(Preparation& op) {
  Dispatch dispatch;
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor ids, op.tensor("experts"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor weights, op.tensor("weights"));
  ACCORD_RETURN_IF_ERROR(op.require(ids, {DType::kInt32, DType::kInt64}));
  ACCORD_RETURN_IF_ERROR(op.require(weights, kExchangeRowTypes));
  ACCORD_ASSIGN_OR_RETURN(dispatch.key, key_of(op, self, ids));
  if (ids.size(0) != self.size(0) || weights.sizes() != ids.sizes() || op.outputs() != 3) {
    return op.corrupt("its rows, their experts and their weights do not fit");
  }
  ACCORD_ASSIGN_OR_RETURN(dispatch.batch, op.integer("batch"));
  ACCORD_ASSIGN_OR_RETURN(dispatch.tokens_of_largest, op.integer("tokens_of_largest"));
  ACCORD_ASSIGN_OR_RETURN(dispatch.tokens, op.contiguous(self));
  ACCORD_ASSIGN_OR_RETURN(dispatch.ids, op.contiguous(ids));
  ACCORD_ASSIGN_OR_RETURN(const Tensor wide, op.converted(weights, DType::kFloat32));
  ACCORD_ASSIGN_OR_RETURN(dispatch.weights, op.contiguous(wide));
  for (const auto& [output, tensor] :
       {std::pair{0, &dispatch.rows}, std::pair{1, &dispatch.row_weights}, std::pair{2, &dispatch.first}}) {
    const auto number = static_cast<std::size_t>(output);
    ACCORD_ASSIGN_OR_RETURN(const Sizes sizes, op.declared_sizes(number));
    ACCORD_ASSIGN_OR_RETURN(*tensor, op.make(number, sizes));
  }
  add_exchange(op, [dispatch](const Execution& execution) { return run_dispatch(dispatch, execution); });
  return Status();
}

Status prepare_combine(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor ids, op.tensor("experts"));
  ACCORD_ASSIGN_OR_RETURN(const ExchangeKey key, key_of(op, self, ids));
  ACCORD_ASSIGN_OR_RETURN(const Tensor output, op.make(0, {ids.size(0), self.size(1)}));
  add_exchange(op, [key, self, output](const Execution& execution) {
    ExpertExchange* const exchange = execution.exchanges->find(key);
    if (exchange == nullptr) return Status(StatusCode::kCorrupt, "nothing was dispatched that could be combined");
    return exchange->group.combine(exchange->handle, {.expert_out = ConstBuffer(buffer_of(self, execution)),
                                                      .result = buffer_of(output, execution)});
  });
  return Status();
}

constexpr OpEntry kExchangeOps[] = {
    {"accord.combine", prepare_combine},
    {"accord.dispatch", prepare_dispatch},
};

}  // namespace

std::span<const OpEntry> exchange_ops() { return kExchangeOps; }

}  // namespace accord::engine
