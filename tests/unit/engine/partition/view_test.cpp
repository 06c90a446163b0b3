// The location of a shard in a view, compared with a check of every element.
#include <gtest/gtest.h>

#include <random>

#include "engine/partition/carry.hpp"

namespace accord::engine {
namespace {

using Sizes = std::vector<std::int64_t>;

SymbolicShape symbolic_shape(const Sizes& sizes) { return SymbolicShape(sizes.begin(), sizes.end()); }

std::int64_t product(const Sizes& sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return count;
}

// Returns the unit to which the element at `flat` belongs if dimension `dim` is cut into pieces of `unit`.
std::int64_t unit_of(std::int64_t flat, const Sizes& sizes, int dim, std::int64_t unit) {
  for (auto last = static_cast<int>(sizes.size()) - 1; last > dim; --last)
    flat /= sizes[static_cast<std::size_t>(last)];
  return flat % sizes[static_cast<std::size_t>(dim)] / unit;
}

// Returns whether cutting `dim` of `to` into pieces of `unit` puts every element into the same unit as `shard` of
// `from` does.
bool same_cut(const Shard& shard, const Sizes& from, const Sizes& to, int dim, std::int64_t unit) {
  for (std::int64_t flat = 0; flat < product(from); ++flat) {
    if (unit_of(flat, from, shard.dim, shard.unit) != unit_of(flat, to, dim, unit)) return false;
  }
  return true;
}

Sizes random_factors(std::int64_t count, std::mt19937& random) {
  Sizes sizes;
  while (count > 1) {
    std::vector<std::int64_t> divisors;
    for (std::int64_t d = 1; d <= count; ++d) {
      if (count % d == 0) divisors.push_back(d);
    }
    sizes.push_back(divisors[random() % divisors.size()]);
    count /= sizes.back();
    if (sizes.size() > 5) break;
  }
  sizes.push_back(count);
  std::shuffle(sizes.begin(), sizes.end(), random);
  return sizes;
}

TEST(ShardOfView, agrees_with_a_check_of_every_element) {
  std::mt19937 random(1);
  int found = 0;
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::int64_t count = std::vector<std::int64_t>{24, 36, 48, 60, 64, 96}[random() % 6];
    const Sizes from = random_factors(count, random);
    const Sizes to = random_factors(count, random);
    const int dim = static_cast<int>(random() % from.size());
    const std::int64_t size = from[static_cast<std::size_t>(dim)];
    std::int64_t unit = 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(size));
    while (size % unit != 0) --unit;
    const std::int64_t units = size / unit;
    if (units == 1) continue;
    const Shard shard{"tp", dim, unit, units};
    const OptionalShard moved = shard_of_view(shard, symbolic_shape(from), symbolic_shape(to));
    bool possible = false;
    for (int candidate = 0; candidate < static_cast<int>(to.size()); ++candidate) {
      const std::int64_t width = to[static_cast<std::size_t>(candidate)];
      if (width % units == 0 && same_cut(shard, from, to, candidate, width / units)) possible = true;
    }
    ASSERT_EQ(moved.has_value(), possible);
    ++(moved ? found : refused);
    if (moved) {
      EXPECT_EQ(moved->units, units);
      EXPECT_TRUE(same_cut(shard, from, to, moved->dim, moved->unit));
    }
  }
  EXPECT_GT(found, 300);
  EXPECT_GT(refused, 300);
}

TEST(ShardOfView, symbols_before_and_after_the_sharded_dimension_are_tracked) {
  const auto size = [](const char* text) { return *SymbolicInt::parse(text); };
  const Shard heads{"tp", 2, 1, 12};
  const SymbolicShape split = {size("b"), size("l"), size("12"), size("32")};
  EXPECT_EQ(shard_of_view(heads, split, {size("b"), size("l"), size("384")}), (Shard{"tp", 2, 32, 12}));
  EXPECT_EQ(shard_of_view(heads, split, {size("b*l"), size("384")}), (Shard{"tp", 1, 32, 12}));
  const Shard outer{"tp", 1, 1, 3};
  const SymbolicShape repeated = {size("b"), size("3"), size("4"), size("l"), size("8")};
  EXPECT_EQ(shard_of_view(outer, repeated, {size("b"), size("12"), size("l"), size("8")}), (Shard{"tp", 1, 4, 3}));
  EXPECT_EQ(shard_of_view(outer, repeated, {size("b*3"), size("4"), size("l"), size("8")}), std::nullopt);
}

}  // namespace
}  // namespace accord::engine
