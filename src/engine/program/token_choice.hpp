#pragma once
// A token that is chosen where the logits are, such as on a device.

#include <cstdint>

#include "accord/token.hpp"

namespace accord::engine {

/// No token was chosen: the caller must look at the row, which may have a NaN or no allowed token.
inline constexpr TokenId kNoToken = -1;

/// Sampler's input for a token, except the logits, if the request does not change the logits.
struct TokenChoice {
  std::int64_t row = 0;    ///< of the logits
  float temperature = 0;   ///< 0: the best token
  std::int32_t top_k = 0;  ///< 0: all
  float top_p = 1;
  std::uint32_t min_weight = 1;  ///< the least weight (token_weight.hpp) that may be drawn; from min_p
  std::uint64_t random = 0;
};

}  // namespace accord::engine
