// The kernels for norms of rows by themselves, in blocks of several sizes, compared with the formula.
#include <cmath>

#include "engine/gpu/kernels/norm_rows.hpp"
#include "unit/engine/gpu/row_arrays.hpp"

namespace accord::engine {
namespace {

using accord::testing::BlockSize;
using accord::testing::numbers_in;
using accord::testing::rounding_of;
using accord::testing::RowArray;
using accord::testing::run_blocks;

constexpr std::size_t kNormedRows = 5;

struct NormCase {
  std::size_t width = 64;
  bool subtract_mean = false;
  bool has_all = false;    ///< residual, sum, weight, bias and addend
  bool in_place = false;   ///< y is x, and the sum is the residual
  std::size_t offset = 0;  ///< of the weight, in elements: not 0 if rows do not consist of Words
  std::size_t gap = 0;     ///< between the rows of x
};

/// The operands of a case, and the results by the formula, in double.
template <DType kDType>
struct Norm {
  explicit Norm(const NormCase& given) : of(given) {
    for (std::size_t row = 0; row < kNormedRows; ++row) {
      double mean = 0, variance = 0;
      for (std::size_t i = 0; i < of.width; ++i) {
        float s = x[row * stride + i];
        if (of.has_all) s = device::rounded_to(kDType, s + addend[i]);
        if (of.has_all) s = device::rounded_to(kDType, s + residual[row * of.width + i]);
        sums.push_back(s);
        if (of.subtract_mean) mean += double{s} / static_cast<double>(of.width);
      }
      for (std::size_t i = 0; i < of.width; ++i)
        variance += std::pow(sums[row * of.width + i] - mean, 2) / static_cast<double>(of.width);
      for (std::size_t i = 0; i < of.width; ++i) {
        const double normed = (sums[row * of.width + i] - mean) / std::sqrt(variance + 1e-5);
        norms.push_back(static_cast<float>(of.has_all ? normed * weight[i] + bias[i] : normed));
      }
    }
  }

  template <typename Kernel>
  void expect_by(int blocks, const BlockSize& size) {
    RowArray rows(kDType, x), residuals(kDType, residual), weights(kDType, weight, of.offset), biases(kDType, bias),
        addends(kDType, addend), y(kDType, count), sum(kDType, count);
    const auto width = static_cast<std::int64_t>(of.width);
    NormCalculation norm;
    norm.dtype = kDType;
    norm.subtract_mean = of.subtract_mean;
    norm.rows = kNormedRows;
    norm.width = width;
    norm.eps = 1e-5F;
    norm.x = {rows.data(), static_cast<std::int64_t>(stride)};
    norm.y = of.in_place ? norm.x : RowOperand{y.data(), width};
    if (of.has_all) {
      norm.residual = {residuals.data(), width};
      norm.sum = {(of.in_place ? residuals : sum).data(), width};
      norm.weight = weights.data(), norm.bias = biases.data(), norm.addend = addends.data();
    }
    run_blocks(Kernel{norm}, blocks, size, 0);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t at = of.in_place ? i / of.width * stride + i % of.width : i;
      const float found = (of.in_place ? rows : y)[at], tolerance = std::max(1.0F, std::fabs(norms[i]));
      ASSERT_NEAR(found, norms[i], rounding_of(kDType) * tolerance) << "element " << i;
      if (of.has_all) {
        ASSERT_EQ((of.in_place ? residuals : sum)[i], sums[i]) << "element " << i;
      }
    }
  }

  const NormCase of;
  const std::size_t stride = of.width + of.gap;
  const std::size_t count = kNormedRows * of.width, stored = kNormedRows * stride;
  const std::vector<float> x = numbers_in(kDType, stored, 1);
  const std::vector<float> residual = numbers_in(kDType, count, 2);
  const std::vector<float> weight = numbers_in(kDType, of.width, 3);
  const std::vector<float> bias = numbers_in(kDType, of.width, 4);
  const std::vector<float> addend = numbers_in(kDType, of.width, 5);
  std::vector<float> sums, norms;
};

template <DType kDType>
void expect_norm_of(const NormCase& of, const BlockSize& size) {
  Norm<kDType> norm(of);
  for (const int blocks : {1, 2, 7}) {
    norm.template expect_by<NormRows<kDType, 1>>(blocks, size);
    norm.template expect_by<NormRows<kDType, kMostKept>>(blocks, size);
    norm.template expect_by<NormShortRows<kDType>>(blocks, size);
    if (::testing::Test::HasFailure()) return;
  }
}

void expect_norm(const NormCase& of, const BlockSize& size) {
  SCOPED_TRACE("width " + std::to_string(of.width) + ", " + std::to_string(size.threads) + " threads");
  expect_norm_of<DType::kFloat32>(of, size);
  expect_norm_of<DType::kBFloat16>(of, size);
  expect_norm_of<DType::kFloat16>(of, size);
}

// Rows that threads keep in registers, whole or in part, and rows that take several turns.
TEST(NormKernels, rows_of_any_width_match_the_formula) {
  for (const BlockSize size : {BlockSize{1, 1}, BlockSize{4, 2}, BlockSize{6, 3}, BlockSize{32, 16}})
    for (const std::size_t width : {1, 3, 8, 24, 64, 100, 264, 1032})
      for (const bool subtract_mean : {false, true})
        for (const bool has_all : {false, true}) {
          expect_norm({.width = width, .subtract_mean = subtract_mean, .has_all = has_all}, size);
          if (::testing::Test::HasFailure()) return;
        }
}

TEST(NormKernels, results_may_replace_the_operands) {
  for (const std::size_t width : {24, 100, 264})
    for (const bool has_all : {false, true})
      expect_norm({.width = width, .subtract_mean = true, .has_all = has_all, .in_place = true}, {4, 2});
}

TEST(NormKernels, operands_that_do_not_begin_at_words) {
  expect_norm({.width = 64, .has_all = true, .offset = 1}, {4, 2});
  expect_norm({.width = 64, .has_all = true, .gap = 3}, {4, 2});
  expect_norm({.width = 64, .has_all = true, .gap = 8}, {4, 2});
}

}  // namespace
}  // namespace accord::engine
