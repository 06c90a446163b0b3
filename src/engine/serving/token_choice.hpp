#pragma once
// A token to be chosen where the logits lie.

#include <cstdint>

#include "accord/token.hpp"

namespace accord::engine {

/// No token was chosen: the row has to be looked at, as it may have a NaN, or nothing that is allowed.
inline constexpr TokenId kNoToken = -1;

/// All that Sampler takes for a token but the logits, of a request that changes none of them.
struct TokenChoice {
  std::int64_t row = 0;    ///< of the logits
  float temperature = 0;   ///< 0: the best token
  std::int32_t top_k = 0;  ///< 0: all
  float top_p = 1;
  std::uint32_t least = 1;  ///< weight (token_weight.hpp) that is drawn from, of min_p
  std::uint64_t random = 0;
};

}  // namespace accord::engine
