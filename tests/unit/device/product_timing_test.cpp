// Which kernel of a library is kept for a product, with kernels over host memory that take a known time.
#include "device/product_timing.hpp"

#include <gtest/gtest.h>

#include "device/device_memory.hpp"
#include "device/host_blas.hpp"

namespace accord::device {
namespace {

using accord::testing::DeviceArray;
using accord::testing::HostBlas;
using accord::testing::HostRuntime;
using std::chrono::microseconds;

constexpr Device kGpu{DeviceType::kCuda, 0};

class ProductTiming : public ::testing::Test {
 protected:
  static constexpr std::int64_t kN = 3, kK = 4;

  Product product_of(std::int64_t m) const {
    Product product;
    product.m = m;
    product.n = kN;
    product.k = kK;
    product.a = {a_.buffer().data, DType::kFloat32, kK, 0};
    product.b = {b_.buffer().data, DType::kFloat32, kK, 0};
    product.c = {c_.buffer().data, DType::kFloat32, kN, 0};
    product.uses_choice = true;
    return product;
  }
  Status choose(const Product& product, Stream stream = {}) {
    return choose_fastest(blas_, runtime_, product, kGpu, stream, [&] { return blas_.now(); });
  }
  // Returns the candidate that computes a product now.
  int kernel_of(const Product& product, int candidates) {
    std::vector<int> before;
    for (int i = 0; i < candidates; ++i) before.push_back(blas_.products_by(i));
    EXPECT_TRUE(blas_.multiply(product, kGpu, {}).ok());
    EXPECT_TRUE(runtime_.synchronize(kGpu, {}).ok());
    int found = -1;
    for (int i = 0; i < candidates; ++i)
      if (blas_.products_by(i) != before[static_cast<std::size_t>(i)]) found = i;
    return found;
  }

  HostRuntime runtime_{1};
  HostBlas blas_{runtime_};
  const accord::testing::OnDevice on_{runtime_, kGpu};
  const DeviceArray a_{on_, std::vector<float>(64 * kK, 1.0F), DType::kFloat32};
  const DeviceArray b_{on_, std::vector<float>(kN* kK, 2.0F), DType::kFloat32};
  const DeviceArray c_{on_, std::vector<float>(64 * kN, -1.0F), DType::kFloat32};
};

TEST_F(ProductTiming, keeps_the_fastest_kernel_of_each_shape) {
  blas_.set_candidates({microseconds(8000), microseconds(1), microseconds(4000)});
  const Product product = product_of(9);
  EXPECT_EQ(kernel_of(product, 3), 0) << "before a choice, the library's first";
  ASSERT_TRUE(choose(product).ok());
  EXPECT_EQ(kernel_of(product, 3), 1);
  EXPECT_EQ(blas_.candidates(product, kGpu).value(), 1);
  EXPECT_EQ(c_.values<float>()[0], 8.0F);
  const int products = blas_.products();
  ASSERT_TRUE(choose(product).ok());
  EXPECT_EQ(blas_.products(), products) << "nothing is timed twice";
}

TEST_F(ProductTiming, shares_a_choice_among_close_numbers_of_rows) {
  blas_.set_candidates({microseconds(5000), microseconds(1)});
  ASSERT_TRUE(choose(product_of(17)).ok());
  EXPECT_EQ(kernel_of(product_of(20), 2), 1);
  EXPECT_EQ(kernel_of(product_of(21), 2), 0);
}

TEST_F(ProductTiming, changes_nothing_for_products_that_need_the_same_bits_everywhere) {
  blas_.set_candidates({microseconds(5000), microseconds(1)});
  Product alike = product_of(9);
  alike.uses_choice = false;
  ASSERT_TRUE(choose(alike).ok());
  EXPECT_EQ(blas_.products(), 0);
  ASSERT_TRUE(choose(product_of(9)).ok());
  EXPECT_EQ(kernel_of(product_of(9), 2), 1);
  EXPECT_EQ(kernel_of(alike, 2), 0) << "of the same shape";
}

TEST_F(ProductTiming, keeps_the_librarys_first_kernel_unless_another_is_clearly_faster) {
  blas_.set_candidates({microseconds(3000), microseconds(2950), microseconds(9000)});
  ASSERT_TRUE(choose(product_of(9)).ok());
  EXPECT_EQ(kernel_of(product_of(9), 3), 0);
}

TEST_F(ProductTiming, stops_timing_kernels_that_are_much_slower) {
  blas_.set_candidates({microseconds(1000), microseconds(20000), microseconds(20000)});
  ASSERT_TRUE(choose(product_of(9)).ok());
  EXPECT_EQ(blas_.products_by(1), 2);  // to load it, and in the first round
  EXPECT_EQ(blas_.products_by(2), 2);
}

TEST_F(ProductTiming, leaves_out_kernels_that_cannot_compute_the_product) {
  blas_.set_candidates({microseconds(2000), microseconds(-1), microseconds(1)});
  ASSERT_TRUE(choose(product_of(9)).ok());
  EXPECT_EQ(kernel_of(product_of(9), 3), 2);
}

TEST_F(ProductTiming, changes_nothing_in_a_capture_and_where_the_result_is_added) {
  blas_.set_candidates({microseconds(2000), microseconds(1)});
  Product adding = product_of(9);
  adding.beta = 1.0F;
  ASSERT_TRUE(choose(adding).ok());
  EXPECT_EQ(blas_.products(), 0);
  const Stream stream = runtime_.create_stream(kGpu, false).value();
  const Result<device::Graph> graph = runtime_.capture(kGpu, stream, [&] {
    ACCORD_RETURN_IF_ERROR(choose(product_of(9), stream));
    return blas_.multiply(product_of(9), kGpu, stream);
  });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_EQ(blas_.products(), 1);
  EXPECT_EQ(blas_.candidates(product_of(9), kGpu).value(), 2);
  EXPECT_TRUE(runtime_.destroy_graph(*graph).ok());
  EXPECT_TRUE(runtime_.destroy_stream(kGpu, stream).ok());
}

TEST_F(ProductTiming, reports_failures_of_the_device) {
  blas_.set_candidates({microseconds(1), microseconds(1)});
  runtime_.fail_next("synchronize", Status(StatusCode::kInternal, "the device is gone"));
  EXPECT_EQ(choose(product_of(9)).code(), StatusCode::kInternal);
}

TEST(RowsLike, has_four_steps_for_each_power_of_two) {
  for (const std::int64_t rows : {1, 2, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 4096}) EXPECT_EQ(rows_like(rows), rows);
  EXPECT_EQ(rows_like(9), 10);
  EXPECT_EQ(rows_like(17), 20);
  EXPECT_EQ(rows_like(2049), 2560);
  EXPECT_EQ(rows_like(3585), 4096);
}

}  // namespace
}  // namespace accord::device
