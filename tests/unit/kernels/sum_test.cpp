// Reductions over dimensions compared with nested loops in double precision.

#include "kernels/sum.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "every_instruction_set.hpp"
#include "random_floats.hpp"

namespace accord::kernels {
namespace {

using Sizes = std::vector<std::int64_t>;

class ReduceDims : public EveryInstructionSet {};

// x is 3 x 40 x 37 with the given layout. Checks every subset of dimensions, with and without the reduced ones kept
// as 1.
void check_floats(Reduction reduction, const Layout& layout) {
  const std::vector<float> x = random_floats(3 * 40 * 37, 1, 0.0F, 2.0F);
  for (int subset = 1; subset < 8; ++subset) {
    std::vector<int> dims;
    Sizes kept_as_one(3), kept;
    for (int i = 0; i < 3; ++i) {
      if ((subset >> i & 1) != 0) dims.push_back(i);
      kept_as_one[static_cast<std::size_t>(i)] = (subset >> i & 1) != 0 ? 1 : layout.sizes[i];
      if ((subset >> i & 1) == 0) kept.push_back(layout.sizes[i]);
    }
    std::vector<double> want(static_cast<std::size_t>(contiguous_layout(kept_as_one).count()),
                             reduction == Reduction::kMax   ? -1.0
                             : reduction == Reduction::kMin ? 9.0
                                                            : 0.0);
    const Layout out = contiguous_layout(kept_as_one);
    for (std::int64_t i = 0; i < layout.sizes[0]; ++i) {
      for (std::int64_t j = 0; j < layout.sizes[1]; ++j) {
        for (std::int64_t k = 0; k < layout.sizes[2]; ++k) {
          const double value = static_cast<double>(
              x[static_cast<std::size_t>(i * layout.strides[0] + j * layout.strides[1] + k * layout.strides[2])]);
          double& at = want[static_cast<std::size_t>((kept_as_one[0] > 1 ? i * out.strides[0] : 0) +
                                                     (kept_as_one[1] > 1 ? j * out.strides[1] : 0) +
                                                     (kept_as_one[2] > 1 ? k * out.strides[2] : 0))];
          if (reduction == Reduction::kMax) at = std::max(at, value);
          if (reduction == Reduction::kMin) at = std::min(at, value);
          if (reduction == Reduction::kSum) at += value;
          if (reduction == Reduction::kMean) at += value * static_cast<double>(want.size()) / (3.0 * 40.0 * 37.0);
        }
      }
    }
    for (const Sizes& sizes : {kept_as_one, kept}) {
      std::vector<float> y(want.size(), -5.0F);
      const Status status = reduce_dims(reduction, {x.data(), DType::kFloat32, layout}, dims,
                                        {y.data(), DType::kFloat32, contiguous_layout(sizes)});
      ASSERT_TRUE(status.ok()) << status.to_string();
      for (std::size_t i = 0; i < y.size(); ++i) {
        ASSERT_NEAR(static_cast<double>(y[i]), want[i], 1e-7 * std::fabs(want[i]))
            << to_string(reduction) << " " << subset;
      }
    }
  }
}

TEST_P(ReduceDims, floats_over_every_set_of_dimensions_and_order_of_strides) {
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean, Reduction::kMax, Reduction::kMin}) {
    check_floats(reduction, contiguous_layout(Sizes{3, 40, 37}));
    check_floats(reduction, permuted_layout(contiguous_layout(Sizes{37, 40, 3}), std::array{2, 1, 0}));
    check_floats(reduction, permuted_layout(contiguous_layout(Sizes{40, 3, 37}), std::array{1, 0, 2}));
  }
}

TEST_P(ReduceDims, nan_propagates_through_max_and_min) {
  for (const std::size_t place : {0U, 20U, 32U}) {
    std::vector<float> x(33, 1.0F);
    x[place] = NAN;
    for (const Reduction reduction : {Reduction::kMax, Reduction::kMin, Reduction::kSum}) {
      float y = 0.0F;
      ASSERT_TRUE(reduce_dims(reduction, {x.data(), DType::kFloat32, contiguous_layout(Sizes{33})}, {},
                              {&y, DType::kFloat32, {}})
                      .ok());
      EXPECT_TRUE(std::isnan(y)) << to_string(reduction) << " " << place;
    }
  }
}

TEST_P(ReduceDims, a_long_sum_keeps_its_small_terms) {
  const std::vector<float> x(1 << 20, 0.1F);
  float y = 0.0F;
  const std::array dims = {0};
  ASSERT_TRUE(reduce_dims(Reduction::kSum, {x.data(), DType::kFloat32, contiguous_layout(Sizes{1 << 20})}, dims,
                          {&y, DType::kFloat32, {}})
                  .ok());
  EXPECT_EQ(y, static_cast<float>(static_cast<double>(0.1F) * (1 << 20)));
}

TEST_P(ReduceDims, integers_and_bools) {
  const std::vector<std::int64_t> x = {5, -2, 9, 7, 1, INT64_MAX};
  const Layout layout = contiguous_layout(Sizes{2, 3});
  const std::array last = {1};
  std::vector<std::int64_t> y(2);
  const auto run = [&](Reduction reduction) {
    EXPECT_TRUE(reduce_dims(reduction, {x.data(), DType::kInt64, layout}, last,
                            {y.data(), DType::kInt64, contiguous_layout(Sizes{2})})
                    .ok());
    return y;
  };
  EXPECT_EQ(run(Reduction::kMax), (std::vector<std::int64_t>{9, INT64_MAX}));
  EXPECT_EQ(run(Reduction::kMin), (std::vector<std::int64_t>{-2, 1}));
  EXPECT_EQ(run(Reduction::kSum), (std::vector<std::int64_t>{12, INT64_MIN + 7}));

  const std::vector<std::uint8_t> truth = {1, 0, 1, 0, 0, 0, 1, 1, 1};
  const Layout square = contiguous_layout(Sizes{3, 3});
  std::vector<std::uint8_t> bools(3);
  const View bool_view{bools.data(), DType::kBool, contiguous_layout(Sizes{3})};
  ASSERT_TRUE(reduce_dims(Reduction::kAny, {truth.data(), DType::kBool, square}, last, bool_view).ok());
  EXPECT_EQ(bools, (std::vector<std::uint8_t>{1, 0, 1}));
  const std::array first = {0};
  ASSERT_TRUE(reduce_dims(Reduction::kAny, {truth.data(), DType::kBool, square}, first, bool_view).ok());
  EXPECT_EQ(bools, (std::vector<std::uint8_t>{1, 1, 1}));
  std::vector<std::int64_t> counts(3);
  ASSERT_TRUE(reduce_dims(Reduction::kSum, {truth.data(), DType::kBool, square}, first,
                          {counts.data(), DType::kInt64, contiguous_layout(Sizes{3})})
                  .ok());
  EXPECT_EQ(counts, (std::vector<std::int64_t>{2, 1, 2}));
}

ACCORD_ON_EVERY_INSTRUCTION_SET(ReduceDims);

TEST(ReduceDimsErrors, invalid_dimensions_sizes_and_dtypes_are_rejected) {
  std::vector<float> x(6), y(6);
  const ConstView view{x.data(), DType::kFloat32, contiguous_layout(Sizes{2, 3})};
  const auto code = [&](Reduction reduction, std::vector<int> dims, const Sizes& sizes, DType dtype = DType::kFloat32) {
    return reduce_dims(reduction, view, dims, {y.data(), dtype, contiguous_layout(sizes)}).code();
  };
  EXPECT_EQ(code(Reduction::kSum, {1}, {2}), StatusCode::kOk);
  EXPECT_EQ(code(Reduction::kSum, {2}, {2}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Reduction::kSum, {1, 1}, {2}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Reduction::kSum, {1}, {3}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Reduction::kSum, {1}, {2, 3}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Reduction::kAny, {1}, {2}), StatusCode::kUnsupported);
  EXPECT_EQ(code(Reduction::kSum, {1}, {2}, DType::kInt64), StatusCode::kUnsupported);
  const ConstView nothing{x.data(), DType::kFloat32, contiguous_layout(Sizes{2, 0})};
  const std::array last = {1};
  EXPECT_EQ(
      reduce_dims(Reduction::kMax, nothing, last, {y.data(), DType::kFloat32, contiguous_layout(Sizes{2})}).code(),
      StatusCode::kInvalidArgument);
  EXPECT_TRUE(
      reduce_dims(Reduction::kMean, nothing, last, {y.data(), DType::kFloat32, contiguous_layout(Sizes{2})}).ok());
  EXPECT_TRUE(std::isnan(y[0]));
}

}  // namespace
}  // namespace accord::kernels
