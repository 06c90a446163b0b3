// Gathers, strided copies and concatenation, compared with explicit index arithmetic.

#include "kernels/index.hpp"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

namespace accord::kernels {
namespace {

using Sizes = std::vector<std::int64_t>;

std::vector<float> counted(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

class Gather : public testing::Test {
 protected:
  std::vector<float> table_ = counted(5 * 3);
  std::vector<float> output_ = std::vector<float>(4 * 3, -1.0F);
  GatherCall call_{.table = table_.data(),
                   .table_rows = 5,
                   .row_bytes = 12,
                   .table_row_stride = 12,
                   .output = output_.data(),
                   .output_row_stride = 12};
};

TEST_F(Gather, selects_rows_by_int64_and_int32_ids) {
  const std::vector<std::int64_t> wide = {4, 0, 2, 4};
  const std::vector<std::int32_t> narrow(wide.begin(), wide.end());
  for (const DType dtype : {DType::kInt64, DType::kInt32}) {
    call_.ids = dtype == DType::kInt64 ? static_cast<const void*>(wide.data()) : narrow.data();
    call_.id_dtype = dtype;
    call_.count = 4;
    EXPECT_FALSE(gather_rows(call_).has_value());
    EXPECT_EQ(output_, (std::vector<float>{12, 13, 14, 0, 1, 2, 6, 7, 8, 12, 13, 14}));
  }
}

TEST_F(Gather, names_the_first_bad_id_and_writes_nothing) {
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{5}, std::int64_t{1} << 40}) {
    const std::vector<std::int64_t> ids = {1, 2, bad, -9};
    call_.ids = ids.data();
    call_.count = 4;
    const std::optional<BadId> found = gather_rows(call_);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->position, 2);
    EXPECT_EQ(found->id, bad);
    EXPECT_EQ(output_, std::vector<float>(12, -1.0F));
  }
}

template <typename T>
void check_permutation(DType dtype, const Sizes& sizes, const std::array<int, 3>& order) {
  const Layout source = contiguous_layout(sizes);
  std::vector<T> x(static_cast<std::size_t>(source.count()));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(i * 7);
  const Layout seen = permuted_layout(source, order);
  std::vector<T> y(x.size());
  const Layout target = contiguous_layout(Sizes(seen.sizes.begin(), seen.sizes.begin() + 3));
  ASSERT_TRUE(copy_strided({x.data(), dtype, seen}, {y.data(), dtype, target}).ok());
  std::size_t at = 0;
  for (std::int64_t i = 0; i < seen.sizes[0]; ++i) {
    for (std::int64_t j = 0; j < seen.sizes[1]; ++j) {
      for (std::int64_t k = 0; k < seen.sizes[2]; ++k, ++at) {
        ASSERT_EQ(y[at], x[static_cast<std::size_t>(i * seen.strides[0] + j * seen.strides[1] + k * seen.strides[2])]);
      }
    }
  }
}

TEST(CopyStrided, permutes_in_every_way_for_every_element_size) {
  std::array<int, 3> order = {0, 1, 2};
  do {
    for (const Sizes& sizes : {Sizes{3, 5, 7}, Sizes{40, 33, 65}, Sizes{1, 100, 3}, Sizes{2, 1, 70}}) {
      check_permutation<float>(DType::kFloat32, sizes, order);
      check_permutation<std::int64_t>(DType::kInt64, sizes, order);
      check_permutation<std::uint16_t>(DType::kBFloat16, sizes, order);
      check_permutation<std::uint8_t>(DType::kUInt8, sizes, order);
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(CopyStrided, expands_and_slices) {
  std::vector<float> x = counted(10), y(6);
  ASSERT_TRUE(copy_strided({x.data() + 1, DType::kFloat32, strided_layout(Sizes{3}, Sizes{2})},
                           {y.data(), DType::kFloat32, contiguous_layout(Sizes{2, 3})})
                  .ok());
  EXPECT_EQ(y, (std::vector<float>{1, 3, 5, 1, 3, 5}));
}

TEST(CopyStrided, rejects_other_dtypes_and_sizes) {
  std::vector<float> x(6), y(6);
  const Layout six = contiguous_layout(Sizes{6});
  EXPECT_EQ(copy_strided({x.data(), DType::kInt32, six}, {y.data(), DType::kFloat32, six}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      copy_strided({x.data(), DType::kFloat32, contiguous_layout(Sizes{5})}, {y.data(), DType::kFloat32, six}).code(),
      StatusCode::kInvalidArgument);
}

TEST(GatherElements, selects_along_one_dimension) {
  std::vector<float> x = counted(12), y(6);
  std::vector<std::int64_t> index = {2, 0, 0, 3, 1, 1};
  const ConstView table{x.data(), DType::kFloat32, contiguous_layout(Sizes{3, 4})};
  const Layout layout = contiguous_layout(Sizes{3, 2});
  ASSERT_TRUE(
      gather_elements(table, 1, {index.data(), DType::kInt64, layout}, {y.data(), DType::kFloat32, layout}).ok());
  EXPECT_EQ(y, (std::vector<float>{2, 0, 4, 7, 9, 9}));
  index[3] = 4;
  const std::vector<float> before = y;
  const Status status =
      gather_elements(table, 1, {index.data(), DType::kInt64, layout}, {y.data(), DType::kFloat32, layout});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("index 4"), std::string::npos) << status.message();
  EXPECT_EQ(y, before);
}

}  // namespace
}  // namespace accord::kernels
