#include "engine/serving/token_weights.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace accord::engine {
namespace {

/// The weight at which the sum of the largest weights first reaches the probability.
std::uint32_t slow_nucleus(const std::vector<float>& values, double probability) {
  std::vector<std::uint32_t> weights;
  double total = 0.0;
  for (const float value : values) {
    weights.push_back(weight_of(value, 0.0F, 1.0F));
    total += weights.back();
  }
  std::sort(weights.rbegin(), weights.rend());
  double sum = 0.0;
  for (const std::uint32_t weight : weights) {
    sum += weight;
    if (sum >= probability * total) return weight;
  }
  return 0;
}

TEST(TokenWeights, the_nucleus_is_found_down_to_the_smallest_weights) {
  std::mt19937 random(7);
  for (const float lowest : {5.0F, 18.0F, 19.0F, 20.0F, 20.7F}) {
    std::vector<float> values(1000, -lowest);
    for (std::size_t i = 0; i < values.size(); i += 3) {
      values[i] = -std::uniform_real_distribution<float>(lowest - 1.0F, 20.7F)(random);
    }
    values[500] = 0.0F;
    TokenWeights weights;
    weights.set(values, 0.0F, 1.0F);
    for (const float probability : {0.5F, 0.9F, 0.999F, 0.999999F, 0.9999998F, 0.99999994F}) {
      EXPECT_EQ(weights.nucleus(probability), slow_nucleus(values, probability)) << lowest << " " << probability;
    }
  }
}

}  // namespace
}  // namespace accord::engine
