// Sorting choices by expert, summing outputs of experts, and the best elements of rows, compared with plain loops.

#include "kernels/experts.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/top_k.hpp"
#include "random_floats.hpp"

namespace accord::kernels {
namespace {

struct Groups {
  Groups(std::int64_t choices, std::int64_t experts)
      : first(static_cast<std::size_t>(experts) + 1, -1),
        order(static_cast<std::size_t>(choices), -1),
        place(static_cast<std::size_t>(choices), -1) {}
  ExpertGroups pointers() { return {first.data(), order.data(), place.data()}; }
  std::vector<std::int64_t> first, order, place;
};

TEST(Experts, choices_are_sorted_by_expert_and_keep_their_order) {
  const std::vector<std::int64_t> ids = {3, 0, 3, 3, 1, 0};
  Groups groups(6, 5);
  EXPECT_FALSE(group_by_expert(ids.data(), DType::kInt64, 6, 5, groups.pointers()));
  EXPECT_EQ(groups.first, (std::vector<std::int64_t>{0, 2, 3, 3, 6, 6}));
  EXPECT_EQ(groups.order, (std::vector<std::int64_t>{1, 5, 4, 0, 2, 3}));
  EXPECT_EQ(groups.place, (std::vector<std::int64_t>{3, 0, 4, 5, 2, 1}));
}

TEST(Experts, an_invalid_expert_id_is_found_before_anything_is_written) {
  for (const std::int32_t bad : {-1, 5}) {
    const std::vector<std::int32_t> ids = {3, 0, bad};
    Groups groups(3, 5);
    const auto found = group_by_expert(ids.data(), DType::kInt32, 3, 5, groups.pointers());
    ASSERT_TRUE(found);
    EXPECT_EQ(found->position, 2);
    EXPECT_EQ(found->id, bad);
    EXPECT_EQ(groups.order, (std::vector<std::int64_t>(3, -1)));
  }
}

TEST(Experts, sums_are_added_to_earlier_values) {
  constexpr std::int64_t kRows = 3, kWidth = 1500;
  const std::vector<float> x = random_floats(2 * kWidth, 1), earlier = random_floats(kRows * kWidth, 2);
  const std::vector<std::int64_t> place = {1, 2, 0};  // the second row's choice is skipped
  std::vector<float> y = earlier;
  CombineCall call;
  call.rows = kRows;
  call.top_k = 1;
  call.width = kWidth;
  call.place = place.data();
  call.last_place = 2;
  call.x = x.data();
  call.y = {y.data(), DType::kFloat32, kWidth};
  call.adds = true;
  combine_experts(call, 0, kRows);
  for (std::int64_t i = 0; i < kWidth; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(y[at], earlier[at] + x[at + kWidth]);
    EXPECT_EQ(y[at + kWidth], earlier[at + kWidth]);
    EXPECT_EQ(y[at + 2 * kWidth], earlier[at + 2 * kWidth] + x[at]);
  }
}

TEST(Experts, outputs_are_summed_with_their_weights) {
  constexpr std::int64_t kRows = 3, kTopK = 2, kWidth = 1500, kStride = 1510;
  const std::vector<float> x = random_floats(kRows * kTopK * kWidth, 1);
  const std::vector<float> weights = random_floats(kRows * kTopK, 2);
  const std::vector<std::int64_t> place = {5, 0, 1, 4, 2, 3};
  std::vector<float> y(kRows * kStride, -7.0F);
  CombineCall call;
  call.rows = kRows;
  call.top_k = kTopK;
  call.width = kWidth;
  call.weights = weights.data();
  call.place = place.data();
  call.x = x.data();
  call.y = {y.data(), DType::kFloat32, kStride};
  combine_experts(call, 1, 3);
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t i = 0; i < kStride; ++i) {
      double sum = -7.0;
      if (row > 0 && i < kWidth) {
        sum = 0.0;
        for (std::size_t j = row * kTopK; j < (row + 1) * kTopK; ++j) {
          sum +=
              static_cast<double>(weights[j]) * static_cast<double>(x[static_cast<std::size_t>(place[j]) * kWidth + i]);
        }
      }
      ASSERT_NEAR(static_cast<double>(y[row * kStride + i]), sum, 1e-6) << row << ", " << i;
    }
  }
}

TEST(Experts, choices_of_experts_on_other_ranks_are_skipped) {
  // Three rows chose two of four experts each; only the results at places 2 and 3 belong to this rank.
  const std::vector<float> x = {90, 91, 3, 5, 92, 93};
  const std::vector<float> weights = {1, 2, 4, 8, 16, 32};
  const std::vector<std::int64_t> place = {2, 0, 1, 4, 5, 3};
  std::vector<float> y(3, -7.0F);
  CombineCall call;
  call.rows = 3;
  call.top_k = 2;
  call.width = 1;
  call.weights = weights.data();
  call.place = place.data();
  call.first_place = 2;
  call.last_place = 4;
  call.x = x.data();
  call.y = {y.data(), DType::kFloat32, 1};
  combine_experts(call, 0, 3);
  EXPECT_EQ(y, (std::vector<float>{1 * 3, 0, 32 * 5}));
}

TEST(Experts, rows_without_positions_are_in_place) {
  const std::vector<float> x = {3, 5, 7};
  const std::vector<float> weights = {2, 4, 8};
  std::vector<float> y(3, -7.0F);
  CombineCall call;
  call.rows = 3;
  call.top_k = 1;
  call.width = 1;
  call.weights = weights.data();
  call.x = x.data();
  call.y = {y.data(), DType::kFloat32, 1};
  combine_experts(call, 0, 2);
  EXPECT_EQ(y, (std::vector<float>{6, 20, -7}));
}

TEST(TopK, returns_the_extremes_of_each_row_in_order_and_the_first_of_equal_ones) {
  std::mt19937 random(0);
  for (const std::int64_t k : {0, 1, 3, 40}) {
    for (const Extreme extreme : {Extreme::kLargest, Extreme::kSmallest}) {
      std::vector<float> x(3 * 45);
      for (float& value : x) value = static_cast<float>(random() % 20);
      std::vector<float> values(static_cast<std::size_t>(3 * k));
      std::vector<std::int64_t> indices(values.size());
      top_k({extreme, DType::kFloat32, x.data(), 3, 40, 45, k, values.data(), indices.data()});
      for (std::size_t row = 0; row < 3; ++row) {
        std::vector<std::int64_t> sorted(40);
        std::iota(sorted.begin(), sorted.end(), 0);
        std::stable_sort(sorted.begin(), sorted.end(), [&](std::int64_t a, std::int64_t b) {
          const float left = x[row * 45 + static_cast<std::size_t>(a)],
                      right = x[row * 45 + static_cast<std::size_t>(b)];
          return extreme == Extreme::kLargest ? left > right : left < right;
        });
        for (std::size_t i = 0; i < static_cast<std::size_t>(k); ++i) {
          const std::size_t at = row * static_cast<std::size_t>(k) + i;
          ASSERT_EQ(indices[at], sorted[i]);
          ASSERT_EQ(values[at], x[row * 45 + static_cast<std::size_t>(sorted[i])]);
        }
      }
    }
  }
}

TEST(TopK, nan_is_the_largest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {1.0F, nan, 3.0F, 2.0F};
  std::vector<float> values(2);
  std::vector<std::int64_t> indices(2);
  top_k({Extreme::kLargest, DType::kFloat32, x.data(), 1, 4, 4, 2, values.data(), indices.data()});
  EXPECT_EQ(indices, (std::vector<std::int64_t>{1, 2}));
  EXPECT_TRUE(std::isnan(values[0]));
  top_k({Extreme::kSmallest, DType::kFloat32, x.data(), 1, 4, 4, 2, values.data(), indices.data()});
  EXPECT_EQ(indices, (std::vector<std::int64_t>{0, 3}));
}

TEST(TopK, integers_that_floats_cannot_distinguish_keep_their_order) {
  const std::vector<std::int64_t> x = {INT64_MAX - 1, INT64_MIN, INT64_MAX, (std::int64_t{1} << 53) + 1,
                                       std::int64_t{1} << 53};
  std::vector<std::int64_t> values(3), indices(3);
  top_k({Extreme::kLargest, DType::kInt64, x.data(), 1, 5, 5, 3, values.data(), indices.data()});
  EXPECT_EQ(indices, (std::vector<std::int64_t>{2, 0, 3}));
  EXPECT_EQ(values, (std::vector<std::int64_t>{INT64_MAX, INT64_MAX - 1, (std::int64_t{1} << 53) + 1}));
  top_k({Extreme::kSmallest, DType::kInt64, x.data(), 1, 5, 5, 2, values.data(), indices.data()});
  EXPECT_EQ(indices, (std::vector<std::int64_t>{1, 4, 3}));
}

}  // namespace
}  // namespace accord::kernels
