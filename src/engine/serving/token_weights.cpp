// Compiled without contraction of products and sums, and with its own exponential (token_weight.hpp), so the only
// roundings are those of the basic operations of IEEE 754. After that, everything is sums of whole numbers.
//
// The threshold of the nucleus is found bit by bit from the top: first the largest power of two from which on the
// weights suffice, then three more bits. The remaining bits are found among the weights of the last shell only. Each
// pass skips blocks that have no weight that large.
#include "engine/serving/token_weights.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace accord::engine {
namespace {

// Returns the sum of at most 2^16 weights. It adds 16-bit halves, for which all processors have vector instructions,
// as for signed comparisons.
std::uint64_t mass_of(std::span<const std::uint32_t> weights, std::uint32_t min_weight) {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  for (const std::uint32_t weight : weights) {
    const std::uint32_t kept = static_cast<std::int32_t>(weight) >= static_cast<std::int32_t>(min_weight) ? weight : 0;
    low += kept & 0xffff;
    high += kept >> 16;
  }
  return (std::uint64_t{high} << 16) + low;
}

}  // namespace

void TokenWeights::set(std::span<const float> values, float best, float temperature) {
  weights_.resize(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) weights_[i] = weight_of(values[i], best, temperature);
  maxima_.clear();
  for (std::size_t first = 0; first < weights_.size(); first += kBlock) {
    const std::size_t last = std::min(first + kBlock, weights_.size());
    std::int32_t largest = 0;  // signed numbers are compared by one instruction
    for (std::size_t i = first; i < last; ++i) largest = std::max(largest, static_cast<std::int32_t>(weights_[i]));
    maxima_.push_back(static_cast<std::uint32_t>(largest));
  }
}

std::span<const std::uint32_t> TokenWeights::block(std::size_t index) const {
  const std::size_t first = index * kBlock;
  return std::span(weights_).subspan(first, std::min(kBlock, weights_.size() - first));
}

std::uint64_t TokenWeights::block_mass(std::size_t index, std::uint32_t min_weight) const {
  return maxima_[index] < min_weight ? 0 : mass_of(block(index), min_weight);
}

std::uint64_t TokenWeights::mass(std::uint32_t min_weight) const {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < maxima_.size(); ++i) sum += block_mass(i, min_weight);
  return sum;
}

std::uint32_t TokenWeights::nucleus(double probability) {
  const double wanted = probability * static_cast<double>(mass(0));
  const auto suffices = [&](std::uint64_t sum) { return sum > 0 && static_cast<double>(sum) >= wanted; };
  std::uint32_t min_weight = 0;
  int bit = std::countr_zero(kOne);
  for (int found = 0; bit >= 0 && found < 4; --bit) {
    const std::uint32_t candidate = min_weight | std::uint32_t{1} << bit;
    if (suffices(mass(candidate))) min_weight = candidate;
    found += min_weight > 0 ? 1 : 0;
  }
  const std::uint32_t end = min_weight + (std::uint32_t{1} << (bit + 1));
  const std::uint64_t above = mass(end);
  shell_.clear();
  for (std::size_t i = 0; i < maxima_.size(); ++i) {
    if (maxima_[i] < min_weight) continue;
    for (const std::uint32_t weight : block(i))
      if (weight >= min_weight && weight < end) shell_.push_back(weight);
  }
  for (; bit >= 0; --bit) {
    const std::uint32_t candidate = min_weight | std::uint32_t{1} << bit;
    std::uint64_t sum = above;
    for (std::size_t first = 0; first < shell_.size(); first += kBlock)
      sum += mass_of(std::span(shell_).subspan(first, std::min(kBlock, shell_.size() - first)), candidate);
    if (suffices(sum)) min_weight = candidate;
  }
  return min_weight;
}

std::size_t TokenWeights::draw(std::uint64_t random, std::uint32_t min_weight) const {
  __extension__ using Wide = unsigned __int128;
  auto left = static_cast<std::uint64_t>((Wide{random} * mass(min_weight)) >> 64);
  std::size_t index = 0;
  for (std::uint64_t sum = block_mass(index, min_weight); left >= sum; sum = block_mass(++index, min_weight))
    left -= sum;
  std::size_t position = index * kBlock;
  for (;; ++position) {
    const std::uint32_t weight = weights_[position] >= min_weight ? weights_[position] : 0;
    if (left < weight) return position;
    left -= weight;
  }
}

double log_sum_exp(std::span<const float> values, float best) {
  constexpr std::size_t kLanes = 16;
  std::array<double, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += static_cast<double>(exp_of(values[i + lane] - best));
  for (; i < values.size(); ++i) sums[i % kLanes] += static_cast<double>(exp_of(values[i] - best));
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return static_cast<double>(best) + std::log(sum);
}

}  // namespace accord::engine
