#include "engine/runtime/context_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accord::engine {
namespace {

std::span<const std::int64_t> numbers_of(const TensorView& tensor) {
  return {static_cast<const std::int64_t*>(tensor.buffer.data), tensor.buffer.count};
}

TensorView tensor_of(std::vector<std::int64_t>& numbers) {
  return {{numbers.data(), numbers.size(), DType::kInt64, {}}, {static_cast<std::int64_t>(numbers.size())}};
}

void take_rows(std::span<const std::int64_t> from, std::span<const std::int64_t> rows, std::vector<std::int64_t>& to) {
  to.clear();
  for (const std::int64_t row : rows) to.push_back(from[static_cast<std::size_t>(row)]);
}

}  // namespace

Result<ContextShare> find_context_share(const Graph& graph, bool is_language_model, const GroupPlace& place,
                                        int canonical_ranks) {
  const auto unsupported = [](std::string_view why) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("group \"{}\" divides the tokens of sequences, but {}", kContextGroup, why));
  };
  if (!is_language_model) return unsupported("this package is not a language model");
  ACCORD_ASSIGN_OR_RETURN(const std::vector<CachedState> states, cached_states(graph));
  if (!states.empty())
    return unsupported("this model has recurrent layers, which compute the tokens one after the other");
  if (canonical_ranks % place.size != 0) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("group \"{}\" has {} ranks, which does not divide canonical_ranks = {}", kContextGroup,
                              place.size, canonical_ranks));
  }
  return ContextShare{.rank = place.rank, .ranks = place.size, .parts = std::max(canonical_ranks, place.size)};
}

Result<std::span<const TensorView>> ContextInputs::cut(const ContextShare& share, std::span<const TensorView> inputs,
                                                       std::span<const BatchRows> batch, std::int64_t block_tokens) {
  const std::span<const std::int64_t> ids = numbers_of(inputs[0]), wanted = numbers_of(inputs[2]);
  everywhere_.assign(wanted.begin(), wanted.end());
  std::sort(everywhere_.begin(), everywhere_.end());
  everywhere_.erase(std::unique(everywhere_.begin(), everywhere_.end()), everywhere_.end());
  const auto rows = static_cast<std::int64_t>(ids.size());
  if (everywhere_.front() < 0 || everywhere_.back() >= rows) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the logits of row {} are wanted, but the run has {} rows",
                              everywhere_.front() < 0 ? everywhere_.front() : everywhere_.back(), rows));
  }
  rows_.divide(share, batch, everywhere_, block_tokens);
  take_rows(ids, rows_.rows(), ids_);
  take_rows(numbers_of(inputs[1]), rows_.rows(), positions_);
  wanted_.clear();
  for (const std::int64_t row : wanted) {
    const auto at = std::lower_bound(everywhere_.begin(), everywhere_.end(), row) - everywhere_.begin();
    wanted_.push_back(rows_.own() + at);
  }
  inputs_ = {tensor_of(ids_), tensor_of(positions_), tensor_of(wanted_)};
  if (inputs.size() > inputs_.size()) {
    take_rows(numbers_of(inputs[3]), rows_.rows(), adapters_);
    inputs_.push_back(tensor_of(adapters_));
  }
  return std::span<const TensorView>(inputs_);
}

}  // namespace accord::engine
