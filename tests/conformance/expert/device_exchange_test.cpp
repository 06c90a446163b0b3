// Every call on devices is bit-identical to the same call on CPU ranks with the same input.
#include "conformance/expert/device_exchange.hpp"

#include <gtest/gtest.h>

#include "sanitized.hpp"

namespace accord {
namespace {

using testing::ExpertProblem;
using testing::Ids;
using testing::kSanitized;
using testing::OnDevice;
using testing::random_ids;

class DeviceExchange : public testing::HostDevices {
 protected:
  static void expect_bit_identical_to_the_cpu(const ExpertProblem& problem, unsigned seed) {
    on_ranks(static_cast<int>(problem.tokens.size()),
             [&](Communicator& comm, const OnDevice& on) { testing::check_device_exchange(comm, on, problem, seed); });
  }
};

TEST_F(DeviceExchange, any_number_of_ranks_and_choices) {
  expect_bit_identical_to_the_cpu({.tokens = {5}}, 1);
  expect_bit_identical_to_the_cpu({.tokens = {7, 3}, .experts = 6, .top_k = 3, .alignment = 4}, 2);
  expect_bit_identical_to_the_cpu({.tokens = {4, 0, 9}, .experts = 12, .top_k = 1, .ids = DType::kInt32}, 3);
  expect_bit_identical_to_the_cpu({.tokens = {6, 11, 0, 2}, .experts = 16, .top_k = 8, .alignment = 2}, 4);
}

TEST_F(DeviceExchange, no_rank_has_a_token) { expect_bit_identical_to_the_cpu({.tokens = {0, 0}}, 5); }

TEST_F(DeviceExchange, more_choices_than_a_chunk_holds) {
  expect_bit_identical_to_the_cpu({.tokens = {90, 140}, .experts = 8, .top_k = 5, .hidden = 4, .alignment = 8}, 6);
}

TEST_F(DeviceExchange, every_dtype_and_width) {
  const ExpertProblem problems[] = {
      {.tokens = {5, 4}, .hidden = 6, .dtype = DType::kFloat64, .result = DType::kFloat64, .weights = DType::kFloat64},
      {.tokens = {5, 4}, .hidden = 3, .dtype = DType::kFloat32, .result = DType::kBFloat16},
      {.tokens = {5, 4}, .hidden = 16, .dtype = DType::kFloat32, .result = DType::kFloat16, .weights = DType::kFloat64},
      {.tokens = {5, 4}, .hidden = 24, .dtype = DType::kFloat16, .result = DType::kFloat16},
      {.tokens = {5, 4}, .hidden = 7, .dtype = DType::kFloat16, .result = DType::kFloat32},
      {.tokens = {5, 4}, .hidden = 24, .dtype = DType::kBFloat16, .result = DType::kBFloat16},
      {.tokens = {5, 4}, .hidden = 9, .dtype = DType::kBFloat16, .result = DType::kBFloat16},
      {.tokens = {5, 4}, .hidden = 144, .dtype = DType::kFloat8E4M3FN, .result = DType::kBFloat16, .scales = true},
      {.tokens = {5, 4}, .hidden = 150, .dtype = DType::kFloat8E4M3FN, .result = DType::kFloat32, .scales = true},
      {.tokens = {5, 4}, .hidden = 32, .dtype = DType::kFloat8E5M2, .result = DType::kFloat16},
      {.tokens = {5, 4}, .hidden = 129, .dtype = DType::kFloat8E5M2, .result = DType::kBFloat16, .scales = true}};
  unsigned seed = 10;
  for (ExpertProblem problem : problems) {
    SCOPED_TRACE(to_string(problem.dtype));
    problem.experts = 8;
    problem.top_k = 4;
    expect_bit_identical_to_the_cpu(problem, ++seed);
  }
}

TEST_F(DeviceExchange, sums_that_all_wait_for_the_last_row) {
  // Each id is farther from the next one than the next one is from all later ones.
  const std::vector<std::int64_t> down = {0, 512, 768, 896, 960, 992, 1008, 1016, 1020, 1022, 1023};
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat8E4M3FN})
    for (const int hidden : {16, 17})
      expect_bit_identical_to_the_cpu({.tokens = {3, 2},
                                       .experts = 1024,
                                       .top_k = 11,
                                       .hidden = hidden,
                                       .dtype = dtype,
                                       .result = dtype == DType::kFloat64 ? dtype : DType::kFloat32,
                                       .scales = dtype == DType::kFloat8E4M3FN,
                                       .chosen = {{down, down, down}, {down, down}}},
                                      40);
}

TEST_F(DeviceExchange, placements_with_replicas_and_ranks_without_experts) {
  expect_bit_identical_to_the_cpu(
      {.tokens = {8, 5, 6}, .experts = 5, .top_k = 3, .placement = {{0, 3}, {0, 1, 2, 3}, {1, 3, 4}}}, 30);
  expect_bit_identical_to_the_cpu({.tokens = {8, 5, 6}, .experts = 3, .top_k = 2, .placement = {{0, 1, 2}, {}, {1}}},
                                  31);
}

TEST_F(DeviceExchange, many_random_problems) {
  std::mt19937 random(7);
  const auto any = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  for (unsigned seed = 100; seed < (kSanitized ? 104 : 116); ++seed) {
    ExpertProblem problem{.tokens = std::vector<int>(static_cast<std::size_t>(any(1, 4)))};
    for (int& tokens : problem.tokens) tokens = any(0, 20);
    problem.experts = static_cast<int>(problem.tokens.size()) * any(1, 5);
    problem.top_k = any(1, std::min(8, problem.experts));
    problem.hidden = any(1, 40);
    problem.alignment = any(1, 9);
    SCOPED_TRACE(seed);
    expect_bit_identical_to_the_cpu(problem, seed);
  }
}

/// Uses values whose sums are exact, so that the definition holds in any order of addition.
TEST_F(DeviceExchange, results_match_the_definition) {
  const Ids ids = random_ids(50, {6, 9}, 6, 3);
  const testing::Slots slots = testing::slots_of(ids, *uniform_expert_placement(6, 2), 4);
  on_ranks(2, [&](Communicator& comm, const OnDevice& on) {
    ExpertGroup group = ExpertGroup::create(comm, {.experts = 6,
                                                   .top_k = 3,
                                                   .hidden = 5,
                                                   .max_tokens_per_rank = 9,
                                                   .alignment = 4,
                                                   .dtype = DType::kFloat32,
                                                   .device = on.device})
                            .value();
    const ExpertHandle handle = group.make_handle().value();
    const auto me = static_cast<std::size_t>(comm.rank());
    const std::vector<ExpertChoice>& sources = slots.sources[me];
    const std::size_t rows = sources.size(), tokens = ids[me].size();
    std::vector<float> x(tokens * 5), y(rows * 5), expected(rows * 5), sums(tokens * 5);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = testing::value(comm.rank(), static_cast<int>(i / 5), i % 5);
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = testing::slot_value(comm.rank(), i / 5, i % 5);
      const ExpertChoice& from = sources[i / 5];
      expected[i] = from.rank < 0 ? 0.0F : testing::value(from.rank, from.token, i % 5);
    }
    for (std::size_t d = 0; d < 2; ++d)
      for (std::size_t slot = 0; slot < slots.sources[d].size(); ++slot)
        if (const ExpertChoice& from = slots.sources[d][slot]; from.rank == comm.rank())
          for (std::size_t h = 0; h < 5; ++h)
            sums[static_cast<std::size_t>(from.token) * 5 + h] += testing::slot_value(static_cast<Rank>(d), slot, h);
    const testing::DeviceArray chosen(on, testing::flat(ids, comm.rank()), DType::kInt64), in(on, x, DType::kFloat32),
        out(on, y, DType::kFloat32), recv(on, std::vector<float>(rows * 5), DType::kFloat32),
        result(on, std::vector<float>(tokens * 5), DType::kFloat32);
    ASSERT_TRUE(group.prepare(handle, {.ids = chosen.buffer(), .stream = on.stream}).ok());
    ASSERT_TRUE(
        group.dispatch(handle, {.tokens = in.buffer(), .recv_tokens = recv.buffer(), .stream = on.stream}).ok());
    EXPECT_EQ(recv.values<float>(), expected);
    ASSERT_TRUE(
        group.combine(handle, {.expert_out = out.buffer(), .result = result.buffer(), .stream = on.stream}).ok());
    EXPECT_EQ(result.values<float>(), sums);
    EXPECT_EQ(handle.recv_rows(), static_cast<std::int64_t>(rows));
  });
}

}  // namespace
}  // namespace accord
