// Linear layers and batched products against double-precision loops.

#include "kernels/gemm.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <thread>
#include <vector>

#include "random_floats.hpp"

extern "C" int omp_get_max_threads();

namespace accord::kernels {
namespace {

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kGeluErf: return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh: return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kRelu: return x > 0.0 ? x : 0.0;
    case Activation::kSilu: return x / (1.0 + std::exp(-x));
    case Activation::kTanh: return std::tanh(x);
  }
  return NAN;
}

struct Case {
  std::int64_t m, in, out;
  Activation activation = Activation::kNone;
  bool bias = true;
  std::int64_t x_gap = 0, y_gap = 0;  // floats between rows
};

void check_linear(const Case& c) {
  const std::int64_t x_stride = c.in + c.x_gap, y_stride = c.out + c.y_gap, w_stride = c.in + 3;
  const std::vector<float> x = random_floats(static_cast<std::size_t>(c.m * x_stride), 1);
  const std::vector<float> w = random_floats(static_cast<std::size_t>(c.out * w_stride), 2);
  const std::vector<float> bias = random_floats(static_cast<std::size_t>(c.out), 3);
  const std::vector<float> before = random_floats(static_cast<std::size_t>(c.m * y_stride), 4);
  std::vector<float> y = before;
  const Result<LinearWeights> weights = LinearWeights::pack(w.data(), c.out, c.in, w_stride);
  ASSERT_TRUE(weights.ok()) << weights.status().to_string();
  const Status status = linear(*weights, {.x = x.data(),
                                          .m = c.m,
                                          .x_row_stride = x_stride,
                                          .bias = c.bias ? bias.data() : nullptr,
                                          .activation = c.activation,
                                          .y = y.data(),
                                          .y_row_stride = y_stride});
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (std::int64_t row = 0; row < c.m; ++row) {
    for (std::int64_t column = 0; column < y_stride; ++column) {
      const std::size_t at = static_cast<std::size_t>(row * y_stride + column);
      if (column >= c.out) {
        ASSERT_EQ(y[at], before[at]) << "wrote between the rows";
        continue;
      }
      double sum = 0.0, size = 0.0;
      for (std::int64_t k = 0; k < c.in; ++k) {
        const double term = static_cast<double>(x[static_cast<std::size_t>(row * x_stride + k)]) *
                            static_cast<double>(w[static_cast<std::size_t>(column * w_stride + k)]);
        sum += term;
        size += std::fabs(term);
      }
      if (c.bias) sum += static_cast<double>(bias[static_cast<std::size_t>(column)]);
      ASSERT_NEAR(static_cast<double>(y[at]), activate(c.activation, sum), 1e-6 * (1.0 + size))
          << "row " << row << " column " << column << " of " << c.m << " x " << c.in << " x " << c.out;
    }
  }
}

TEST(Linear, agrees_with_a_double_loop_for_any_number_of_rows) {
  for (const std::int64_t m : {1, 2, 3, 7, 16, 33, 64, 129}) {
    check_linear({.m = m, .in = 96, .out = 144});
    check_linear({.m = m, .in = 31, .out = 50});
    check_linear({.m = m, .in = 1, .out = 1, .bias = false});
    check_linear({.m = m, .in = 384, .out = 7});
  }
}

TEST(Linear, applies_each_activation_after_the_bias) {
  for (const Activation activation : {Activation::kNone, Activation::kGeluErf, Activation::kGeluTanh, Activation::kRelu,
                                      Activation::kSilu, Activation::kTanh}) {
    for (const bool bias : {true, false}) {
      check_linear({.m = 5, .in = 8, .out = 100, .activation = activation, .bias = bias});
    }
  }
}

TEST(Linear, rows_may_lie_apart) {
  for (const std::int64_t m : {1, 17}) check_linear({.m = m, .in = 48, .out = 96, .x_gap = 5, .y_gap = 11});
}

TEST(Linear, packed_weights_take_the_memory_of_their_rounded_size) {
  const std::vector<float> w = random_floats(384 * 1536, 1);
  const Result<LinearWeights> even = LinearWeights::pack(w.data(), 1536, 384);
  EXPECT_EQ(even->bytes(), 1536U * 384U * 4U);
  const Result<LinearWeights> odd = LinearWeights::pack(w.data(), 100, 384);
  EXPECT_GE(odd->bytes(), 100U * 384U * 4U);
  EXPECT_LE(odd->bytes(), 128U * 384U * 4U);
}

TEST(Linear, weights_move_with_their_memory) {
  const std::vector<float> w = random_floats(64 * 32, 1), x = random_floats(32, 2);
  LinearWeights first = *LinearWeights::pack(w.data(), 64, 32);
  const LinearWeights second = std::move(first);
  std::vector<float> y(64);
  const LinearCall call{.x = x.data(), .m = 1, .x_row_stride = 32, .y = y.data(), .y_row_stride = 64};
  EXPECT_TRUE(linear(second, call).ok());
  EXPECT_EQ(linear(first, call).code(), StatusCode::kInvalidArgument);  // NOLINT: the moved-from object is empty
}

TEST(Linear, refuses_sizes_without_meaning) {
  const std::vector<float> w(64);
  EXPECT_EQ(LinearWeights::pack(w.data(), 0, 8).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(LinearWeights::pack(w.data(), 8, 8, 7).status().code(), StatusCode::kInvalidArgument);
  const LinearWeights weights = *LinearWeights::pack(w.data(), 8, 8);
  std::vector<float> x(16), y(16);
  LinearCall call{.x = x.data(), .m = 2, .x_row_stride = 7, .y = y.data(), .y_row_stride = 8};
  EXPECT_EQ(linear(weights, call).code(), StatusCode::kInvalidArgument);
  call.m = 0;
  EXPECT_TRUE(linear(weights, call).ok());
}

TEST(Linear, threads_share_weights_and_kernels) {
  constexpr std::int64_t kIn = 64, kOut = 96, kRows = 9;
  const std::vector<float> w = random_floats(kIn * kOut, 1), x = random_floats(kIn * kRows, 2);
  const LinearWeights weights = *LinearWeights::pack(w.data(), kOut, kIn);
  const auto run = [&](std::int64_t m) {
    std::vector<float> y(static_cast<std::size_t>(kOut * m));
    const Status status =
        linear(weights, {.x = x.data(), .m = m, .x_row_stride = kIn, .y = y.data(), .y_row_stride = kOut});
    EXPECT_TRUE(status.ok()) << status.to_string();
    return y;
  };
  std::vector<std::vector<float>> want;
  for (std::int64_t m = 1; m <= kRows; ++m) want.push_back(run(m));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 50; ++turn) {
        const std::int64_t m = 1 + turn % kRows;
        EXPECT_EQ(run(m), want[static_cast<std::size_t>(m - 1)]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Linear, more_shapes_than_the_cache_holds_still_run) {
  const std::vector<float> w = random_floats(16 * 16, 1), x = random_floats(16 * 600, 2);
  const LinearWeights weights = *LinearWeights::pack(w.data(), 16, 16);
  std::vector<float> y(16 * 600), first_row(16);
  for (std::int64_t m = 1; m <= 600; ++m) {
    ASSERT_TRUE(prepare_linear(weights, {.m = m, .x_row_stride = 16, .y_row_stride = 16}).ok());
  }
  for (const std::int64_t m : {1, 300, 600}) {
    ASSERT_TRUE(linear(weights, {.x = x.data(), .m = m, .x_row_stride = 16, .y = y.data(), .y_row_stride = 16}).ok());
    double want = 0.0;
    for (std::size_t k = 0; k < 16; ++k) want += static_cast<double>(x[k]) * static_cast<double>(w[k]);
    EXPECT_NEAR(static_cast<double>(y[0]), want, 1e-5);
  }
}

TEST(Linear, leaves_the_threads_own_openmp_setting_alone) {
  const int before = omp_get_max_threads();
  check_linear({.m = 2, .in = 8, .out = 8});
  EXPECT_EQ(omp_get_max_threads(), before);
}

TEST(Gemm, agrees_with_a_double_loop_in_batches_with_strides) {
  for (const Transpose transpose : {Transpose::kNo, Transpose::kYes}) {
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 1, 1}, {7, 5, 32}, {64, 33, 17}, {3, 4, 0}}) {
      constexpr std::int64_t kBatch = 3;
      const bool transposed = transpose == Transpose::kYes;
      const std::int64_t a_row = k + 2, b_row = (transposed ? k : n) + 1, c_row = n + 4;
      const std::int64_t a_batch = m * a_row, b_batch = (transposed ? n : k) * b_row, c_batch = m * c_row;
      const std::vector<float> a = random_floats(static_cast<std::size_t>(kBatch * a_batch) + 1, 1);
      const std::vector<float> b = random_floats(static_cast<std::size_t>(kBatch * b_batch) + 1, 2);
      const std::vector<float> before = random_floats(static_cast<std::size_t>(kBatch * c_batch), 3);
      for (const float beta : {0.0F, 1.0F, -0.5F}) {
        std::vector<float> c = before;
        const Status status = gemm({.m = m,
                                    .n = n,
                                    .k = k,
                                    .a = a.data(),
                                    .a_row_stride = a_row,
                                    .b = b.data(),
                                    .b_row_stride = b_row,
                                    .transpose_b = transpose,
                                    .c = c.data(),
                                    .c_row_stride = c_row,
                                    .alpha = 0.25F,
                                    .beta = beta,
                                    .batch = kBatch,
                                    .a_batch_stride = a_batch,
                                    .b_batch_stride = b_batch,
                                    .c_batch_stride = c_batch});
        ASSERT_TRUE(status.ok()) << status.to_string();
        for (std::int64_t i = 0; i < kBatch * c_batch; ++i) {
          const std::int64_t batch = i / c_batch, row = i % c_batch / c_row, column = i % c_row;
          double want = static_cast<double>(before[static_cast<std::size_t>(i)]);
          if (column < n) {
            want *= static_cast<double>(beta);
            for (std::int64_t j = 0; j < k; ++j) {
              const std::int64_t at_b = batch * b_batch + (transposed ? column * b_row + j : j * b_row + column);
              want += 0.25 * static_cast<double>(a[static_cast<std::size_t>(batch * a_batch + row * a_row + j)]) *
                      static_cast<double>(b[static_cast<std::size_t>(at_b)]);
            }
          }
          ASSERT_NEAR(static_cast<double>(c[static_cast<std::size_t>(i)]), want, 1e-5) << m << "x" << n << "x" << k;
        }
      }
    }
  }
}

TEST(Gemm, refuses_rows_that_overlap) {
  std::vector<float> memory(64);
  EXPECT_EQ(gemm({.m = 4,
                  .n = 4,
                  .k = 4,
                  .a = memory.data(),
                  .a_row_stride = 3,
                  .b = memory.data(),
                  .b_row_stride = 4,
                  .c = memory.data(),
                  .c_row_stride = 4})
                .code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace accord::kernels
