#pragma once
// Probabilities as whole numbers, so that their sums and the drawn tokens do not depend on any order or machine.

#include <cstdint>
#include <span>
#include <vector>

#include "engine/program/token_weight.hpp"

namespace accord::engine {

/// exp((value - best) / temperature) of each value, the largest of which is `best`, in units of 2^-30, rounded: a
/// token that is less than half a billionth as likely as the best is never drawn. Bit-identical on every machine.
/// Reuses its memory.
class TokenWeights {
 public:
  static constexpr std::uint32_t kOne = kWholeWeight;

  void set(std::span<const float> values, float best, float temperature);

  std::span<const std::uint32_t> weights() const { return weights_; }
  /// Returns the sum of the weights that are at least `min_weight`.
  std::uint64_t mass(std::uint32_t min_weight) const;
  /// Returns the largest t such that the weights of at least t sum to at least `probability` of the total; at most
  /// kOne.
  std::uint32_t nucleus(double probability);
  /// Returns the index that the random number selects among the weights of at least `min_weight`. REQUIRES: one of
  /// these weights is not 0.
  std::size_t draw(std::uint64_t random, std::uint32_t min_weight) const;

 private:
  static constexpr std::size_t kBlock = 256;  // weights that share one maximum

  std::span<const std::uint32_t> block(std::size_t index) const;
  std::uint64_t block_mass(std::size_t index, std::uint32_t min_weight) const;

  std::vector<std::uint32_t> weights_;
  std::vector<std::uint32_t> maxima_;
  std::vector<std::uint32_t> shell_;
};

/// Returns the natural logarithm of the sum of exp(value). `best` is the largest of the values.
double log_sum_exp(std::span<const float> values, float best);

}  // namespace accord::engine
