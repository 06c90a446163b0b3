#pragma once
// Tokens that pass through staging memory, divided into rounds.

#include <algorithm>
#include <cstdint>

#include "base/rounding.hpp"
#include "expert/routing.hpp"

namespace accord::expert {

/// Tokens [first, last) of a rank.
struct TokenRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Every rank moves the same number of its tokens in each round, until it has no more.
class Rounds {
 public:
  /// No rounds.
  Rounds() = default;
  /// `chunk`: tokens of each rank in a round, at least 1.
  Rounds(const Routing& routing, std::int64_t chunk)
      : routing_(&routing), chunk_(chunk), count_(quotient_up(max_tokens(routing), chunk)) {}
  /// One round of all tokens; none if no rank has a token.
  static Rounds of_all_tokens(const Routing& routing) {
    return {routing, std::max<std::int64_t>(max_tokens(routing), 1)};
  }

  std::int64_t count() const { return count_; }
  std::size_t chunk() const { return to_size(chunk_); }
  TokenRange tokens(Rank rank, std::int64_t round) const {
    const std::int64_t tokens = routing_->tokens_of(rank);
    return {std::min(tokens, round * chunk_), std::min(tokens, (round + 1) * chunk_)};
  }

 private:
  static std::int64_t max_tokens(const Routing& routing) {
    std::int64_t most = 0;
    for (Rank rank = 0; rank + 1 < static_cast<Rank>(routing.first_token.size()); ++rank)
      most = std::max(most, routing.tokens_of(rank));
    return most;
  }

  const Routing* routing_ = nullptr;
  std::int64_t chunk_ = 1;
  std::int64_t count_ = 0;
};

}  // namespace accord::expert
