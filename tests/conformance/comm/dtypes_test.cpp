// Every dtype and op through every collective that they apply to, for every transport and algorithm, bit-identical to
// the plain computation on every rank. Meaningless combinations are rejected immediately.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "conformance/comm/planned.hpp"
#include "ranks/thread_ranks.hpp"
#include "unit/kernels/reduce_reference.hpp"

namespace accord {
namespace {

using ::testing::HasSubstr;
using testing::kSizes;
using testing::PlannedCase;
using testing::run_thread_ranks;
using Bytes = std::vector<std::byte>;

class Dtypes : public testing::Planned {};

constexpr std::size_t kParts[] = {0, 1, 7, 333};  // elements per rank

std::vector<DType> all_dtypes() {
  std::vector<DType> dtypes;
  for (int i = 0; i < kDTypeCount; ++i) dtypes.push_back(static_cast<DType>(i));
  return dtypes;
}

std::vector<ReduceOp> all_ops() {
  std::vector<ReduceOp> ops;
  for (int i = 0; i < kReduceOpCount; ++i) ops.push_back(static_cast<ReduceOp>(i));
  return ops;
}

Bytes random_bytes(std::size_t bytes, int rank) {
  std::mt19937_64 random(static_cast<unsigned>(rank) + 17 * bytes);
  Bytes values(bytes);
  for (std::byte& byte : values) byte = static_cast<std::byte>(random());
  return values;
}

std::complex<double> factor_of(int rank, DType dtype) {
  return {1.3 - 0.4 * rank, kind_of(dtype) == DTypeKind::kComplex ? 0.6 + rank : 0.0};
}

Reduction reduction(ReduceOp op, DType dtype, int rank) {
  return op == ReduceOp::kPremulSum ? Reduction::premul_sum(factor_of(rank, dtype)) : Reduction(op);
}

// Returns the reduction of the inputs of all ranks.
Bytes reduced(DType dtype, ReduceOp op, const std::vector<Bytes>& inputs) {
  if (inputs.size() == 1 && op != ReduceOp::kPremulSum) return inputs[0];
  Bytes result(inputs[0].size());
  std::vector<std::complex<double>> factors;
  for (std::size_t r = 0; r < inputs.size(); ++r) factors.push_back(factor_of(static_cast<int>(r), dtype));
  kernels::with_reference(dtype, [&](const auto& reference) {
    using Bits = typename std::decay_t<decltype(reference)>::Bits;
    for (std::size_t at = 0; at < result.size(); at += sizeof(Bits)) {
      std::vector<Bits> column(inputs.size());
      for (std::size_t r = 0; r < inputs.size(); ++r) std::memcpy(&column[r], &inputs[r][at], sizeof(Bits));
      const Bits value = reference.reduce(op, column, factors);
      std::memcpy(&result[at], &value, sizeof(Bits));
    }
  });
  return result;
}

Buffer over(Bytes& bytes, DType dtype) { return {bytes.data(), bytes.size() / size_of(dtype), dtype}; }

void check_reductions(Communicator& comm, DType dtype, ReduceOp op, const Bytes& input, const Bytes& expected) {
  const Reduction how = reduction(op, dtype, comm.rank());
  const auto ok = [](const Status& status) { ASSERT_TRUE(status.ok()) << status.to_string(); };
  Bytes mine = input, output(input.size());
  ok(comm.all_reduce(ConstBuffer(over(mine, dtype)), over(output, dtype), how));
  ASSERT_EQ(mine, input) << "the input was written";
  ASSERT_EQ(output, expected) << "all_reduce";
  ok(comm.all_reduce(over(mine, dtype), how));
  ASSERT_EQ(mine, expected) << "all_reduce in place";

  const Rank root = comm.size() - 1;
  mine = input;
  std::fill(output.begin(), output.end(), std::byte{});
  ok(comm.reduce(ConstBuffer(over(mine, dtype)), over(output, dtype), how, root));
  ASSERT_EQ(output, comm.rank() == root ? expected : Bytes(input.size())) << "reduce";

  Bytes part(input.size() / static_cast<std::size_t>(comm.size()));
  ok(comm.reduce_scatter(ConstBuffer(over(mine, dtype)), over(part, dtype), how));
  const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(part.size()) * comm.rank();
  ASSERT_EQ(part, Bytes(begin, begin + static_cast<std::ptrdiff_t>(part.size()))) << "reduce_scatter";
}

TEST_P(Dtypes, every_op_matches_the_canonical_tree_bit_for_bit_on_every_rank) {
  for (const int size : kSizes) {
    struct Case {
      DType dtype;
      ReduceOp op;
      std::vector<Bytes> inputs;
      Bytes expected;
    };
    std::vector<Case> cases;
    for (const DType dtype : all_dtypes())
      for (const ReduceOp op : all_ops())
        for (const std::size_t part : kParts) {
          if (!is_defined(op, dtype) || kind_of(dtype) == DTypeKind::kBool) continue;
          Case& one = cases.emplace_back(Case{dtype, op, {}, {}});
          for (int rank = 0; rank < size; ++rank)
            one.inputs.push_back(random_bytes(part * static_cast<std::size_t>(size) * size_of(dtype), rank));
          one.expected = reduced(dtype, op, one.inputs);
        }
    run_thread_ranks(size, options(), [&](Communicator comm) {
      for (const Case& one : cases) {
        SCOPED_TRACE(::testing::Message() << to_string(one.op) << " of " << to_string(one.dtype) << ", " << size
                                          << " ranks, " << one.expected.size() << " bytes");
        ASSERT_NO_FATAL_FAILURE(
            check_reductions(comm, one.dtype, one.op, one.inputs[static_cast<std::size_t>(comm.rank())], one.expected));
      }
    });
  }
}

TEST_P(Dtypes, bool_is_combined_as_truth_values) {
  run_thread_ranks(3, options(), [](Communicator comm) {
    // Element i is true on the ranks whose bit is set in i.
    const std::pair<ReduceOp, bool (*)(int)> truths[] = {
        {ReduceOp::kSum, [](int i) { return i != 0; }},
        {ReduceOp::kProduct, [](int i) { return i == 7; }},
        {ReduceOp::kMin, [](int i) { return i == 7; }},
        {ReduceOp::kMax, [](int i) { return i != 0; }},
        {ReduceOp::kBand, [](int i) { return i == 7; }},
        {ReduceOp::kBor, [](int i) { return i != 0; }},
        {ReduceOp::kBxor, [](int i) { return i == 1 || i == 2 || i == 4 || i == 7; }}};
    for (const auto& [op, truth] : truths) {
      std::array<bool, 8> values{};
      for (int i = 0; i < 8; ++i) values[static_cast<std::size_t>(i)] = ((i >> comm.rank()) & 1) != 0;
      ASSERT_TRUE(comm.all_reduce(Buffer{values.data(), values.size(), DType::kBool}, op).ok());
      for (int i = 0; i < 8; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], truth(i)) << to_string(op) << " " << i;
    }
  });
}

TEST_P(Dtypes, collectives_that_move_bytes_accept_every_dtype) {
  for (const int size : {2, 3}) {
    run_thread_ranks(size, options(), [size](Communicator comm) {
      for (const DType dtype : all_dtypes())
        for (const std::size_t part : kParts) {
          const std::size_t bytes = part * size_of(dtype), whole = bytes * static_cast<std::size_t>(size);
          Bytes mine = random_bytes(bytes, comm.rank()), gathered(whole), expected, sent = mine;
          for (int rank = 0; rank < size; ++rank) {
            const Bytes theirs = random_bytes(bytes, rank);
            expected.insert(expected.end(), theirs.begin(), theirs.end());
          }
          ASSERT_TRUE(comm.all_gather(ConstBuffer(over(mine, dtype)), over(gathered, dtype)).ok());
          ASSERT_EQ(gathered, expected) << to_string(dtype);
          ASSERT_TRUE(comm.broadcast(over(mine, dtype), 1).ok());
          ASSERT_EQ(mine, random_bytes(bytes, 1)) << to_string(dtype);
          ASSERT_TRUE(comm.all_to_all(ConstBuffer(over(gathered, dtype)), over(gathered, dtype)).ok());
          for (int rank = 0; rank < size; ++rank)
            ASSERT_TRUE(
                std::equal(sent.begin(), sent.end(), gathered.begin() + static_cast<std::ptrdiff_t>(bytes) * rank));
        }
    });
  }
}

TEST_P(Dtypes, an_invalid_combination_is_rejected_before_anything_is_sent) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    std::complex<double> value = 1.0;
    if (comm.rank() == 0) {  // the other rank never calls, so this call must not wait
      for (const DType dtype : all_dtypes())
        for (const ReduceOp op : all_ops()) {
          if (is_defined(op, dtype)) continue;
          const Status status = comm.all_reduce(Buffer{&value, 1, dtype}, reduction(op, dtype, 0));
          EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
          EXPECT_THAT(status.message(), HasSubstr(std::string(to_string(op)) + " has no meaning for " +
                                                  std::string(to_string(dtype)) + ", which has sum, product"));
        }
    }
    EXPECT_TRUE(comm.barrier().ok());
  });
}

TEST_P(Dtypes, the_factor_of_premul_sum_is_checked_and_is_a_number_or_one_element) {
  run_thread_ranks(2, options(), [](Communicator comm) {
    // bfloat16: 0x3F80 = 1, 0x4000 = 2, 0xBF80 = -1; rank 0 has 2 x 1, rank 1 has -1 x 2.
    std::uint16_t value = comm.rank() == 0 ? 0x3F80 : 0x4000;
    const std::uint16_t factor = comm.rank() == 0 ? 0x4000 : 0xBF80;
    const Buffer one{&value, 1, DType::kBFloat16};
    ASSERT_TRUE(comm.all_reduce(one, Reduction::premul_sum(ConstBuffer(&factor, 1, DType::kBFloat16))).ok());
    EXPECT_EQ(value, 0);
    float wide = 3;
    const auto message = [&](const Reduction& how) { return comm.all_reduce(one, how).message(); };
    EXPECT_THAT(message(ReduceOp::kPremulSum), HasSubstr("premul_sum needs the factor"));
    EXPECT_THAT(message(Reduction::premul_sum(ConstBuffer(&wide, 1, DType::kFloat32))),
                HasSubstr("factor has 1 x float32, expected 1 x bfloat16"));
    EXPECT_THAT(message(Reduction::premul_sum(ConstBuffer(nullptr, 1, DType::kBFloat16))), HasSubstr("factor is null"));
    EXPECT_THAT(message(Reduction::premul_sum(std::complex<double>(0, 1))), HasSubstr("factor is a complex number"));
    EXPECT_TRUE(comm.barrier().ok());
  });
}

std::vector<PlannedCase> dtype_cases() {
  const std::pair<std::string, std::string> selections[] = {
      {"default", ""},
      {"one_shot_in_small_slots",
       "all_reduce:0-inf=one_shot@4k;reduce:0-inf=direct@4k;reduce_scatter:0-inf=direct@4k;"
       "broadcast:0-inf=direct@4k;all_gather:0-inf=direct@4k;all_to_all:0-inf=direct@4k"},
      {"two_shot_in_small_slots", "all_reduce:0-inf=two_shot@4k;reduce:0-inf=two_shot@4k"},
      {"packets",
       "all_reduce:0-inf=packet;reduce:0-inf=packet;reduce_scatter:0-inf=packet;broadcast:0-inf=packet;"
       "all_gather:0-inf=packet;all_to_all:0-inf=packet"},
  };
  std::vector<PlannedCase> all;
  for (const char* transport : {"inproc", "shm", "ucx"})
    for (const auto& [name, select] : selections)
      all.push_back({std::string(transport) + "_" + name, transport, select});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Dtypes, ::testing::ValuesIn(dtype_cases()), testing::name_of);

}  // namespace
}  // namespace accord
