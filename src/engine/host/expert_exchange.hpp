#pragma once
// The expert groups of a context, which send the rows of a batch that ranks share to the experts chosen for them.

#include <cstdint>
#include <list>
#include <string_view>

#include "accord/communicator.hpp"
#include "accord/expert_parallel.hpp"
#include "engine/ops/exchange.hpp"

namespace accord::engine {

/// An existing expert group and its key.
struct ExpertExchange {
  ExchangeKey key;
  std::int64_t max_tokens = 0;
  ExpertGroup group;
  ExpertHandle handle;
};

/// Expert groups are created on first use, and created again when more tokens are needed than they have room for.
class ExpertExchanges {
 public:
  /// Returns an exchange for layers like `key` in which no rank has more than `tokens` tokens. Each rank has its
  /// share of the experts, matching its weights. Collective over `communicator` if none exists yet: ranks ask for the
  /// same in the same order.
  Result<ExpertExchange*> ensure_capacity(const ExchangeKey& key, Communicator communicator, std::int64_t tokens);
  /// Returns the exchange that was requested last for `key`; nullptr if there is none.
  ExpertExchange* find(const ExchangeKey& key);
  /// Releases peers that wait in any of the exchanges.
  void abort(std::string_view reason);
  void clear() { exchanges_.clear(); }

 private:
  std::list<ExpertExchange> exchanges_;
};

}  // namespace accord::engine
