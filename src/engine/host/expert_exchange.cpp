#include "engine/host/expert_exchange.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "engine/package/package.hpp"

namespace accord::engine {
namespace {

ExpertPlacement placement_of_weights(int experts, int ranks) {
  ExpertPlacement placement(static_cast<std::size_t>(ranks));
  for (Rank rank = 0; rank < ranks; ++rank) {
    const UnitRange mine = units_of_rank(experts, rank, ranks);
    std::vector<int>& list = placement[static_cast<std::size_t>(rank)];
    list.resize(static_cast<std::size_t>(mine.count));
    std::iota(list.begin(), list.end(), static_cast<int>(mine.first));
  }
  return placement;
}

}  // namespace

ExpertExchange* ExpertExchanges::find(const ExchangeKey& key) {
  const auto found = std::find_if(exchanges_.begin(), exchanges_.end(),
                                  [&](const ExpertExchange& exchange) { return exchange.key == key; });
  return found == exchanges_.end() ? nullptr : &*found;
}

Result<ExpertExchange*> ExpertExchanges::ensure_capacity(const ExchangeKey& key, Communicator communicator,
                                                         std::int64_t tokens) {
  ExpertExchange* const known = find(key);
  if (known != nullptr && known->max_tokens >= tokens) return known;
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;
  if (tokens > kMaxTokens) {
    return Status(StatusCode::kResourceExhausted, "there are more tokens than can be dispatched at once");
  }
  // The capacity grows to the next power of two, so that growing batches create few groups.
  const auto capacity =
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(tokens, 64))));
  ExpertGroupConfig config;
  config.experts = key.experts;
  config.top_k = key.top_k;
  config.hidden = key.hidden;
  config.dtype = key.dtype;
  config.max_tokens_per_rank = static_cast<int>(capacity);
  config.placement = placement_of_weights(key.experts, communicator.size());
  ACCORD_ASSIGN_OR_RETURN(ExpertGroup group, ExpertGroup::create(communicator, std::move(config)));
  ACCORD_ASSIGN_OR_RETURN(ExpertHandle handle, group.make_handle());
  std::erase_if(exchanges_, [&](const ExpertExchange& exchange) { return exchange.key == key; });
  exchanges_.push_back({key, capacity, std::move(group), std::move(handle)});
  return &exchanges_.back();
}

void ExpertExchanges::abort(std::string_view reason) {
  for (const ExpertExchange& exchange : exchanges_) {
    Communicator communicator = exchange.group.communicator();
    communicator.abort(reason);
  }
}

}  // namespace accord::engine
