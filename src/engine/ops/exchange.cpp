// Sends the rows of ranks that share a batch to the experts chosen for them, and returns the results.
#include "engine/ops/exchange.hpp"

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

Status prepare_dispatch(Preparation& op) {
  DispatchRowsCall dispatch;
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
  op.run_always();
  return op.add(dispatch);
}

Status prepare_combine(Preparation& op) {
  ACCORD_ASSIGN_OR_RETURN(const Tensor self, op.tensor("self"));
  ACCORD_ASSIGN_OR_RETURN(const Tensor ids, op.tensor("experts"));
  ACCORD_ASSIGN_OR_RETURN(const ExchangeKey key, key_of(op, self, ids));
  ACCORD_ASSIGN_OR_RETURN(const Tensor results, op.contiguous(self));
  ACCORD_ASSIGN_OR_RETURN(const Tensor y, op.make(0, {ids.size(0), self.size(1)}));
  op.run_always();
  return op.add(CombineRowsCall{key, results, y});
}

constexpr OpEntry kExchangeOps[] = {
    {"accord.combine", prepare_combine},
    {"accord.dispatch", prepare_dispatch},
};

}  // namespace

std::span<const OpEntry> exchange_ops() { return kExchangeOps; }

}  // namespace accord::engine
