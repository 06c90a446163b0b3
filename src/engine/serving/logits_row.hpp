#pragma once
// One row of logits: its largest values, without sorting it.

#include <cstdint>
#include <span>
#include <vector>

#include "accord/generation.hpp"

namespace accord::engine {

/// Looks at one row after the other; keeps its memory. Costs one pass over the row; then only over what is large in it.
class LogitsRow {
 public:
  /// Takes a row, which has to stay as it is. kCorrupt names a NaN or +inf in it, kInvalidArgument if all of it is
  /// -inf.
  Status set(std::span<const float> row);

  float best() const { return best_; }
  /// Of equal ones the lowest.
  TokenId best_token() const;
  /// The k-th largest value, 1 <= k <= size.
  float kth_largest(std::size_t k);
  /// Tokens with at least this value, ascending.
  void collect(float least, std::vector<TokenId>& tokens) const;

 private:
  Status complaint() const;

  static constexpr std::size_t kBlock = 64;  // values with one maximum

  std::span<const float> row_;
  std::vector<float> maxima_;
  std::vector<float> candidates_;
  float best_ = 0;
};

}  // namespace accord::engine
