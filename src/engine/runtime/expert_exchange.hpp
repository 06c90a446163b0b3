#pragma once
// The expert groups of a context: through which the rows of a batch that ranks share go to the experts that they chose.

#include <cstdint>
#include <list>
#include <string_view>

#include "accord/communicator.hpp"
#include "accord/expert_parallel.hpp"

namespace accord::engine {

/// What layers have in common that can take turns with one group.
struct ExchangeKey {
  int group = 0;  ///< index of the engine's group
  int experts = 0;
  int top_k = 0;
  int hidden = 0;
  DType dtype = DType::kFloat32;
  bool operator==(const ExchangeKey&) const = default;
};

/// One that is there.
struct ExpertExchange {
  ExchangeKey key;
  std::int64_t most_tokens = 0;
  ExpertGroup group;
  ExpertHandle handle;
};

/// Made when they are first needed, and anew for more tokens than they have room for.
class ExpertExchanges {
 public:
  /// For layers like `key` where no rank has more than `tokens`. Each rank has its share of the experts, as it has of the weights. Collective
  /// over `communicator` if there is none yet: ranks ask for the same in the same order.
  Result<ExpertExchange*> with_room(const ExchangeKey& key, Communicator communicator, std::int64_t tokens);
  /// The one that was asked for last; nullptr if there is none.
  ExpertExchange* find(const ExchangeKey& key);
  /// Ends what peers wait for in them.
  void abort(std::string_view reason);
  void clear() { exchanges_.clear(); }

 private:
  std::list<ExpertExchange> exchanges_;
};

}  // namespace accord::engine
