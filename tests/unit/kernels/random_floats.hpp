#pragma once
// Random test data.

#include <random>
#include <vector>

namespace accord::kernels {

/// Returns `count` floats spread evenly over [low, high], the same for the same seed.
inline std::vector<float> random_floats(std::size_t count, unsigned seed, float low = -1.0F, float high = 1.0F) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

}  // namespace accord::kernels
