// The numbers of accord.h never change, because programs are compiled with them. Their meaning is checked by names,
// by widths, and by sums of bit patterns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "unit/c/c_ranks.hpp"

namespace accord {
namespace {

using testing::call_on;
using ::testing::HasSubstr;
using testing::is_ok;
using testing::run_c_ranks;

TEST(Numbers, of_dtypes_have_the_name_and_width_of_numpy) {
  struct Row {
    accord_dtype_t constant;
    int number;
    const char* name;
    size_t bytes;
  };
  const std::vector<Row> rows = {{ACCORD_INT8, 1, "int8", 1},
                                 {ACCORD_INT16, 2, "int16", 2},
                                 {ACCORD_INT32, 3, "int32", 4},
                                 {ACCORD_INT64, 4, "int64", 8},
                                 {ACCORD_UINT8, 5, "uint8", 1},
                                 {ACCORD_UINT16, 6, "uint16", 2},
                                 {ACCORD_UINT32, 7, "uint32", 4},
                                 {ACCORD_UINT64, 8, "uint64", 8},
                                 {ACCORD_FLOAT16, 9, "float16", 2},
                                 {ACCORD_BFLOAT16, 10, "bfloat16", 2},
                                 {ACCORD_FLOAT32, 11, "float32", 4},
                                 {ACCORD_FLOAT64, 12, "float64", 8},
                                 {ACCORD_FLOAT8_E4M3FN, 13, "float8_e4m3fn", 1},
                                 {ACCORD_FLOAT8_E5M2, 14, "float8_e5m2", 1},
                                 {ACCORD_COMPLEX64, 15, "complex64", 8},
                                 {ACCORD_COMPLEX128, 16, "complex128", 16},
                                 {ACCORD_BOOL, 17, "bool", 1}};
  for (const Row& row : rows) {
    EXPECT_EQ(row.constant, row.number);
    EXPECT_STREQ(accord_dtype_name(row.number), row.name);
    EXPECT_EQ(accord_dtype_size(row.number), row.bytes) << row.name;
  }
  for (const accord_dtype_t none : {0, -1, 1000}) {
    EXPECT_STREQ(accord_dtype_name(none), "unknown");
    EXPECT_EQ(accord_dtype_size(none), 0U);
  }
}

TEST(Numbers, of_the_other_enums_are_stable) {
  EXPECT_EQ((std::vector<int>{ACCORD_SUM, ACCORD_PRODUCT, ACCORD_MIN, ACCORD_MAX, ACCORD_BAND, ACCORD_BOR, ACCORD_BXOR,
                              ACCORD_AVG, ACCORD_PREMUL_SUM}),
            (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ((std::vector<int>{ACCORD_CPU, ACCORD_CUDA, ACCORD_STORE_CLIENT, ACCORD_STORE_HOST}),
            (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ((std::vector<int>{ACCORD_STATE_READY, ACCORD_STATE_FAILED, ACCORD_STATE_CLOSED}),
            (std::vector<int>{0, 1, 2}));
  EXPECT_EQ((std::vector<int>{ACCORD_CALL_BARRIER, ACCORD_CALL_BROADCAST, ACCORD_CALL_ALL_GATHER,
                              ACCORD_CALL_REDUCE_SCATTER, ACCORD_CALL_ALL_REDUCE, ACCORD_CALL_REDUCE,
                              ACCORD_CALL_GATHER, ACCORD_CALL_SCATTER, ACCORD_CALL_ALL_TO_ALL, ACCORD_CALL_SEND,
                              ACCORD_CALL_RECV, ACCORD_CALL_ALL_GATHER_V, ACCORD_CALL_REDUCE_SCATTER_V,
                              ACCORD_CALL_GATHER_V, ACCORD_CALL_SCATTER_V, ACCORD_CALL_ALL_TO_ALL_V}),
            (std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}));
}

/// The bits of 1 and of 2 in a dtype.
struct Bits {
  accord_dtype_t dtype;
  std::uint64_t one;
  std::uint64_t two;
};

TEST(Numbers, one_and_one_is_two_in_every_dtype_that_adds) {
  const std::vector<Bits> dtypes = {{ACCORD_FLOAT32, 0x3f800000, 0x40000000},
                                    {ACCORD_FLOAT16, 0x3c00, 0x4000},
                                    {ACCORD_BFLOAT16, 0x3f80, 0x4000},
                                    {ACCORD_FLOAT64, 0x3ff0000000000000, 0x4000000000000000},
                                    {ACCORD_FLOAT8_E4M3FN, 0x38, 0x40},
                                    {ACCORD_FLOAT8_E5M2, 0x3c, 0x40},
                                    {ACCORD_COMPLEX64, 0x3f800000, 0x40000000},
                                    {ACCORD_INT8, 1, 2},
                                    {ACCORD_INT16, 1, 2},
                                    {ACCORD_INT32, 1, 2},
                                    {ACCORD_INT64, 1, 2},
                                    {ACCORD_UINT8, 1, 2},
                                    {ACCORD_UINT16, 1, 2},
                                    {ACCORD_UINT32, 1, 2},
                                    {ACCORD_UINT64, 1, 2}};
  run_c_ranks(2, [&](accord_communicator_t* comm, int) {
    for (const Bits& bits : dtypes) {
      std::uint64_t value = bits.one;
      EXPECT_TRUE(is_ok(accord_all_reduce(comm, &value, &value, 1, bits.dtype, ACCORD_SUM, nullptr)));
      EXPECT_EQ(value, bits.two) << accord_dtype_name(bits.dtype);
    }
  });
}

TEST(Numbers, of_ops_select_the_op_of_their_name) {
  run_c_ranks(2, [](accord_communicator_t* comm, int rank) {
    const std::vector<int> expected = {6 + 3, 6 * 3, 3, 6, 6 & 3, 6 | 3, 6 ^ 3, (6 + 3) / 2};
    for (accord_op_t op = ACCORD_SUM; op <= ACCORD_AVG; ++op) {
      int32_t value = rank == 0 ? 6 : 3;
      EXPECT_TRUE(is_ok(accord_all_reduce(comm, &value, &value, 1, ACCORD_INT32, op, nullptr)));
      EXPECT_EQ(value, expected[static_cast<size_t>(op)]) << "op " << op;
    }
    float value = rank == 0 ? 6 : 3;
    const float factor = rank == 0 ? 0.5F : 10;
    accord_call_t call = call_on(ACCORD_CALL_ALL_REDUCE, ACCORD_FLOAT32, &value);
    call.factor = &factor;
    EXPECT_EQ(accord_run(comm, &call, nullptr), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("op is sum, not premul_sum"));
    call.op = ACCORD_PREMUL_SUM;
    EXPECT_TRUE(is_ok(accord_run(comm, &call, nullptr)));
    EXPECT_EQ(value, 3 + 30);
  });
}

TEST(Numbers, invalid_numbers_are_rejected_with_a_list_of_valid_ones) {
  run_c_ranks(1, [](accord_communicator_t* comm, int) {
    float value = 1;
    const auto refused = [&](auto change) {
      accord_call_t call = call_on(ACCORD_CALL_ALL_REDUCE, ACCORD_FLOAT32, &value);
      accord_call_options_t options = ACCORD_CALL_OPTIONS_INIT;
      change(call, options);
      EXPECT_EQ(accord_run(comm, &call, &options), ACCORD_INVALID_ARGUMENT);
      return std::string(accord_last_error());
    };
    using Call = accord_call_t;
    using Options = accord_call_options_t;
    EXPECT_EQ(refused([](Call& call, Options&) { call.dtype = 0; }),
              "accord_run: dtype 0 is not defined in accord.h, expected 1 to 17");
    EXPECT_THAT(refused([](Call& call, Options&) { call.dtype = 1000; }), HasSubstr("dtype 1000"));
    EXPECT_THAT(refused([](Call& call, Options&) { call.dtype = INT32_MIN; }), HasSubstr("dtype -2147483648"));
    EXPECT_THAT(refused([](Call& call, Options&) { call.kind = 0; }), HasSubstr("kind 0"));
    EXPECT_THAT(refused([](Call& call, Options&) { call.op = -1; }), HasSubstr("op -1"));
    EXPECT_THAT(refused([](Call&, Options& options) { options.device = 9; }), HasSubstr("device 9"));
    EXPECT_THAT(refused([](Call&, Options& options) { options.device_index = -1; }), HasSubstr("device_index is -1"));
    EXPECT_THAT(refused([](Call&, Options& options) { options.device_index = 65536; }), HasSubstr("65536"));
    EXPECT_THAT(refused([](Call&, Options& options) { options.timeout_ns = -5; }), HasSubstr("timeout_ns is -5"));
    EXPECT_EQ(accord_barrier(comm, nullptr), ACCORD_OK) << "an invalid argument has no effect";
  });
}

TEST(Numbers, of_another_device_reach_the_communicator) {
  run_c_ranks(1, [](accord_communicator_t* comm, int) {
    float value = 1;
    accord_call_options_t options = ACCORD_CALL_OPTIONS_INIT;
    options.device = ACCORD_CUDA;
    options.device_index = 3;
    EXPECT_EQ(accord_broadcast(comm, &value, 1, ACCORD_FLOAT32, 0, &options), ACCORD_UNSUPPORTED);
    EXPECT_THAT(accord_last_error(), HasSubstr("cuda:3"));
  });
}

}  // namespace
}  // namespace accord
