// Batched products compared with double-precision loops.

#include "kernels/gemm.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "random_floats.hpp"

extern "C" int omp_get_max_threads();

namespace accord::kernels {
namespace {

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

TEST(Gemm, does_not_change_the_openmp_setting_of_the_thread) {
  const int before = omp_get_max_threads();
  const std::vector<float> a = {2.0F}, b = {3.0F};
  float c = 0.0F;
  ASSERT_TRUE(gemm({.m = 1,
                    .n = 1,
                    .k = 1,
                    .a = a.data(),
                    .a_row_stride = 1,
                    .b = b.data(),
                    .b_row_stride = 1,
                    .c = &c,
                    .c_row_stride = 1})
                  .ok());
  EXPECT_EQ(c, 6.0F);
  EXPECT_EQ(omp_get_max_threads(), before);
}

TEST(Gemm, rejects_rows_that_overlap) {
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
