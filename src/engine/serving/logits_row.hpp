#pragma once
// Finds the largest values of one row of logits without sorting it.

#include <cstdint>
#include <span>
#include <vector>

#include "accord/generation.hpp"

namespace accord::engine {

/// Processes one row after the other and reuses its memory. Cost: one pass over the row, then only over its large
/// values.
class LogitsRow {
 public:
  /// Sets the row, which must not change while it is in use. Fails with kCorrupt, naming the token, if a logit is NaN
  /// or +inf, and with kInvalidArgument if all are -inf.
  Status set(std::span<const float> row);

  float best() const { return best_; }
  /// The lowest of equally good ones.
  TokenId best_token() const;
  /// Returns the k-th largest value, 1 <= k <= size.
  float kth_largest(std::size_t k);
  /// Sets `tokens` to the tokens whose value is at least `min_value`, ascending.
  void collect(float min_value, std::vector<TokenId>& tokens) const;

 private:
  Status error_status() const;

  static constexpr std::size_t kBlock = 64;  // values that share one maximum

  std::span<const float> row_;
  std::vector<float> maxima_;
  std::vector<float> candidates_;
  float best_ = 0;
};

}  // namespace accord::engine
