#include "accord/buffer.hpp"

#include <gmock/gmock.h>

namespace accord {
namespace {

// Names and sizes as in NumPy and PyTorch.
TEST(DType, has_the_name_and_size_of_numpy_and_pytorch) {
  const struct {
    DType dtype;
    std::string_view name;
    std::size_t size;
  } expected[] = {{DType::kInt8, "int8", 1},
                  {DType::kInt16, "int16", 2},
                  {DType::kInt32, "int32", 4},
                  {DType::kInt64, "int64", 8},
                  {DType::kUInt8, "uint8", 1},
                  {DType::kUInt16, "uint16", 2},
                  {DType::kUInt32, "uint32", 4},
                  {DType::kUInt64, "uint64", 8},
                  {DType::kFloat16, "float16", 2},
                  {DType::kBFloat16, "bfloat16", 2},
                  {DType::kFloat32, "float32", 4},
                  {DType::kFloat64, "float64", 8},
                  {DType::kFloat8E4M3FN, "float8_e4m3fn", 1},
                  {DType::kFloat8E5M2, "float8_e5m2", 1},
                  {DType::kComplex64, "complex64", 8},
                  {DType::kComplex128, "complex128", 16},
                  {DType::kBool, "bool", 1}};
  static_assert(std::size(expected) == kDTypeCount);
  for (const auto& [dtype, name, size] : expected) {
    EXPECT_EQ(to_string(dtype), name);
    EXPECT_EQ(size_of(dtype), size);
    EXPECT_EQ(*dtype_from_string(name), dtype);
  }
}

TEST(DType, an_unknown_name_is_an_error_that_names_the_nearest) {
  const Status status = dtype_from_string("flaot32").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "unknown dtype \"flaot32\"; did you mean \"float32\"?");
  EXPECT_THAT(dtype_from_string("decimal").status().message(), testing::HasSubstr("complex128 and bool"));
}

TEST(ReduceOp, converts_to_text_and_back) {
  const std::pair<ReduceOp, const char*> expected[] = {
      {ReduceOp::kSum, "sum"},   {ReduceOp::kProduct, "product"}, {ReduceOp::kMin, "min"},
      {ReduceOp::kMax, "max"},   {ReduceOp::kBand, "band"},       {ReduceOp::kBor, "bor"},
      {ReduceOp::kBxor, "bxor"}, {ReduceOp::kAvg, "avg"},         {ReduceOp::kPremulSum, "premul_sum"}};
  static_assert(std::size(expected) == kReduceOpCount);
  for (const auto& [op, name] : expected) {
    EXPECT_EQ(to_string(op), name);
    EXPECT_EQ(*reduce_op_from_string(name), op);
  }
  EXPECT_THAT(reduce_op_from_string("mix").status().message(), testing::HasSubstr("did you mean"));
}

TEST(Device, is_written_as_in_pytorch) {
  EXPECT_EQ(to_string(Device{}), "cpu");
  EXPECT_EQ(to_string(Device{DeviceType::kCuda, 1}), "cuda:1");
}

TEST(Buffer, knows_its_bytes) {
  std::int64_t data[3] = {};
  const Buffer buffer{data, 3, DType::kInt64};
  EXPECT_EQ(buffer.bytes(), sizeof data);
  EXPECT_EQ(ConstBuffer(buffer).bytes(), sizeof data);
}

}  // namespace
}  // namespace accord
