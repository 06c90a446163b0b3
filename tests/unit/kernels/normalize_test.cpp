// Normalizations compared with double-precision loops, for widths around the vector sizes, with gaps between rows.

#include "kernels/normalize.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "every_instruction_set.hpp"
#include "half_reference.hpp"
#include "random_floats.hpp"

namespace accord::kernels {
namespace {

constexpr std::int64_t kRowCount = 3;
constexpr std::int64_t kWidths[] = {1, 2, 7, 15, 16, 17, 64, 100, 384, 1537};
constexpr std::int64_t kGap = 5;
constexpr float kUntouchedFloat = 1234.5F;

using Row = std::vector<double>;

// Runs a kernel on rows with gaps, out of place and in place, and compares with reference(row, index of row).
void check_rows(float low, float high, double tolerance, const std::function<void(const RowsCall&)>& kernel,
                const std::function<Row(const Row&, std::int64_t)>& reference) {
  for (const std::int64_t width : kWidths) {
    const std::int64_t stride = width + kGap;
    const std::vector<float> x = random_floats(static_cast<std::size_t>(kRowCount * stride), 9, low, high);
    for (const bool in_place : {false, true}) {
      std::vector<float> y(x.size(), kUntouchedFloat);
      if (in_place) y = x;
      kernel({.x = in_place ? y.data() : x.data(),
              .x_row_stride = stride,
              .y = y.data(),
              .y_row_stride = stride,
              .rows = kRowCount,
              .width = width});
      for (std::int64_t row = 0; row < kRowCount; ++row) {
        const auto begin = x.begin() + row * stride;
        const Row want = reference(Row(begin, begin + width), row);
        for (std::int64_t i = 0; i < stride; ++i) {
          const std::size_t at = static_cast<std::size_t>(row * stride + i);
          if (i >= width) {
            ASSERT_EQ(y[at], in_place ? x[at] : kUntouchedFloat) << "wrote between the rows";
          } else {
            const double w = want[static_cast<std::size_t>(i)];
            ASSERT_NEAR(static_cast<double>(y[at]), w, tolerance * (1.0 + std::fabs(w)))
                << "width " << width << " at " << i;
          }
        }
      }
    }
  }
}

double mean(const Row& row) {
  double sum = 0.0;
  for (const double x : row) sum += x;
  return sum / static_cast<double>(row.size());
}

class Normalize : public EveryInstructionSet {};

TEST_P(Normalize, layer_norm_with_and_without_weight_and_bias) {
  const std::vector<float> weight = random_floats(2000, 1), bias = random_floats(2000, 2);
  for (const bool affine : {true, false}) {
    check_rows(
        -3.0F, 5.0F, 2e-6,
        [&](const RowsCall& rows) {
          layer_norm(
              rows,
              {.weight = affine ? weight.data() : nullptr, .bias = affine ? bias.data() : nullptr, .eps = 1e-12F});
        },
        [&](const Row& row, std::int64_t) {
          const double m = mean(row);
          double variance = 0.0;
          for (const double x : row) variance += (x - m) * (x - m) / static_cast<double>(row.size());
          Row want;
          for (std::size_t i = 0; i < row.size(); ++i) {
            want.push_back((row[i] - m) / std::sqrt(variance + 1e-12) *
                               (affine ? static_cast<double>(weight[i]) : 1.0) +
                           (affine ? static_cast<double>(bias[i]) : 0.0));
          }
          return want;
        });
  }
}

TEST_P(Normalize, layer_norm_adds_the_residual_first_and_can_keep_the_sum) {
  constexpr std::int64_t kStride = 1600;
  const std::vector<float> residual = random_floats(kRowCount * kStride, 4);
  std::vector<float> sum(kRowCount * kStride);
  bool sum_is_kept = true;
  const auto reference = [&](const Row& row, std::int64_t index) {
    Row s;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(index * kStride) + i;
      s.push_back(row[i] + static_cast<double>(residual[at]));
      if (sum_is_kept) {
        EXPECT_NEAR(static_cast<double>(sum[at]), s.back(), 1e-6);
      }
    }
    const double m = mean(s);
    double variance = 0.0;
    for (const double x : s) variance += (x - m) * (x - m) / static_cast<double>(s.size());
    for (double& x : s) x = (x - m) / std::sqrt(variance + 1e-5);
    return s;
  };
  check_rows(
      -1.0F, 1.0F, 2e-6,
      [&](const RowsCall& rows) {
        layer_norm(rows, {.residual = residual.data(),
                          .residual_row_stride = kStride,
                          .sum = sum.data(),
                          .sum_row_stride = kStride});
      },
      reference);
  sum_is_kept = false;
  check_rows(
      -1.0F, 1.0F, 2e-6,
      [&](const RowsCall& rows) { layer_norm(rows, {.residual = residual.data(), .residual_row_stride = kStride}); },
      reference);
}

TEST_P(Normalize, rms_norm_scales_by_the_root_of_the_mean_square) {
  const std::vector<float> weight = random_floats(2000, 1);
  check_rows(
      -2.0F, 2.0F, 2e-6, [&](const RowsCall& rows) { rms_norm(rows, {.weight = weight.data(), .eps = 1e-6F}); },
      [&](const Row& row, std::int64_t) {
        double squares = 0.0;
        for (const double x : row) squares += x * x;
        Row want;
        for (std::size_t i = 0; i < row.size(); ++i) {
          want.push_back(row[i] / std::sqrt(squares / static_cast<double>(row.size()) + 1e-6) *
                         static_cast<double>(weight[i]));
        }
        return want;
      });
}

/// Rows of 16-bit floats: their bits, and their values.
template <typename T>
struct HalfRows {
  HalfRows(const HalfReference& format, const std::vector<float>& numbers) {
    for (const float number : numbers) {
      bits.push_back(static_cast<T>(format.encode(static_cast<double>(number))));
      values.push_back(format.decode(static_cast<std::uint16_t>(bits.back())));
    }
  }
  std::vector<T> bits;
  std::vector<double> values;
};

// The sum is the exact sum, rounded. The norm of the rounded sum is correct up to one rounding of its own result.
template <typename T>
void check_half_norms(const HalfReference& format, double rounding) {
  for (const std::int64_t width : kWidths) {
    const auto count = static_cast<std::size_t>(kRowCount * width);
    const HalfRows<T> x(format, random_floats(count, 5, -2.0F, 3.0F)), residual(format, random_floats(count, 6));
    const HalfRows<T> weight(format, random_floats(count, 7)), bias(format, random_floats(count, 8));
    const HalfRows<T> addend(format, random_floats(count, 9));
    for (const auto& [layer, added] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      std::vector<T> y(count), sum = residual.bits;  // the sum overwrites the residual
      const RowsOf<T> rows = {.x = x.bits.data(),
                              .x_row_stride = width,
                              .y = y.data(),
                              .y_row_stride = width,
                              .rows = kRowCount,
                              .width = width};
      const NormParametersOf<T> parameters = {.weight = weight.bits.data(),
                                              .bias = layer ? bias.bits.data() : nullptr,
                                              .addend = added ? addend.bits.data() : nullptr,
                                              .residual = sum.data(),
                                              .residual_row_stride = width,
                                              .sum = sum.data(),
                                              .sum_row_stride = width};
      layer ? layer_norm(rows, parameters) : rms_norm(rows, parameters);
      for (std::int64_t row = 0; row < kRowCount; ++row) {
        Row s;
        for (std::int64_t i = 0; i < width; ++i) {
          const auto at = static_cast<std::size_t>(row * width + i);
          const double shifted = x.values[at] + addend.values[static_cast<std::size_t>(i)];
          const double first = added ? format.decode(static_cast<std::uint16_t>(format.encode(shifted))) : x.values[at];
          ASSERT_EQ(static_cast<std::uint16_t>(sum[at]), format.encode(first + residual.values[at]));
          s.push_back(format.decode(static_cast<std::uint16_t>(sum[at])));
        }
        const double center = layer ? mean(s) : 0.0;
        double squares = 0.0;
        for (const double v : s) squares += (v - center) * (v - center);
        for (std::size_t i = 0; i < s.size(); ++i) {
          const double want =
              (s[i] - center) / std::sqrt(squares / static_cast<double>(width) + 1e-5) * weight.values[i] +
              (layer ? bias.values[i] : 0.0);
          const double got = format.decode(static_cast<std::uint16_t>(y[static_cast<std::size_t>(row * width) + i]));
          ASSERT_NEAR(got, want, rounding * std::fabs(want) + 1e-5) << "width " << width << " at " << i;
        }
      }
    }
  }
}

TEST_P(Normalize, norms_of_16_bit_floats_round_the_sum_and_the_result) {
  check_half_norms<BFloat16>(HalfReference::bfloat16(), 1.0 / 256 + 1e-5);
  check_half_norms<Float16>(HalfReference::float16(), 1.0 / 2048 + 1e-5);
}

double sum_of_exponentials(const Row& row, double max) {
  double sum = 0.0;
  for (const double x : row) sum += std::exp(x - max);
  return sum;
}

TEST_P(Normalize, softmax_over_a_wide_range) {
  check_rows(-100.0F, 100.0F, 1e-6, softmax, [](const Row& row, std::int64_t) {
    const double max = *std::max_element(row.begin(), row.end());
    Row want;
    for (const double x : row) want.push_back(std::exp(x - max) / sum_of_exponentials(row, max));
    return want;
  });
}

TEST_P(Normalize, log_softmax_is_its_logarithm_without_underflow) {
  check_rows(-100.0F, 100.0F, 1e-6, log_softmax, [](const Row& row, std::int64_t) {
    const double max = *std::max_element(row.begin(), row.end());
    Row want;
    for (const double x : row) want.push_back(x - max - std::log(sum_of_exponentials(row, max)));
    return want;
  });
}

TEST_P(Normalize, softmax_of_infinities_and_nan_matches_pytorch) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> y(20);
  const auto run = [&](std::vector<float> x) {
    softmax({.x = x.data(), .x_row_stride = 20, .y = y.data(), .y_row_stride = 20, .rows = 1, .width = 20});
  };
  std::vector<float> one_open(20, -kInfinity);
  one_open[18] = 3.0F;
  run(one_open);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(y[i], i == 18 ? 1.0F : 0.0F);
  run(std::vector<float>(20, -kInfinity));
  for (const float value : y) EXPECT_TRUE(std::isnan(value));
  for (const std::size_t place : {0U, 17U}) {
    std::vector<float> with_nan(20, 1.0F);
    with_nan[place] = NAN;
    run(with_nan);
    for (const float value : y) EXPECT_TRUE(std::isnan(value)) << place;
  }
}

ACCORD_ON_EVERY_INSTRUCTION_SET(Normalize);

}  // namespace
}  // namespace accord::kernels
