#pragma once
// Probabilities as whole numbers, so that their sums, and what is drawn, depend on no order and no machine.

#include <cstdint>
#include <span>
#include <vector>

#include "engine/serving/token_weight.hpp"

namespace accord::engine {

/// exp((value - best) / temperature) of each value, the largest of which is `best`, in units of 2^-30, rounded: what is
/// less than half a billionth as likely as the best is never drawn. Equal bits on every machine. Keeps its memory.
class TokenWeights {
 public:
  static constexpr std::uint32_t kOne = kWholeWeight;

  void set(std::span<const float> values, float best, float temperature);

  std::span<const std::uint32_t> weights() const { return weights_; }
  /// The sum of the weights that are at least `least`.
  std::uint64_t mass(std::uint32_t least) const;
  /// The largest t such that the weights from t on have at least the part `probability` of the sum; at most kOne.
  std::uint32_t nucleus(double probability);
  /// The index that the random number hits among the weights of at least `least`, some of which is not 0.
  std::size_t draw(std::uint64_t random, std::uint32_t least) const;

 private:
  static constexpr std::size_t kBlock = 256;  // weights with one maximum

  std::span<const std::uint32_t> block(std::size_t index) const;
  std::uint64_t block_mass(std::size_t index, std::uint32_t least) const;

  std::vector<std::uint32_t> weights_;
  std::vector<std::uint32_t> maxima_;
  std::vector<std::uint32_t> shell_;
};

/// The natural logarithm of the sum of exp(value), the largest of which is `best`.
double log_sum_exp(std::span<const float> values, float best);

}  // namespace accord::engine
