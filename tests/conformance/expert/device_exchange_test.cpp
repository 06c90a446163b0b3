// On devices every call gives the bits that it gives on CPU ranks for the same input.
#include <gtest/gtest.h>

#include "conformance/expert/device_ranks.hpp"
#include "sanitized.hpp"

namespace accord {
namespace {

using testing::bytes_of;
using testing::Ids;
using testing::kSanitized;
using testing::OnDevice;
using testing::random_elements;
using testing::random_ids;
using testing::Twin;
using testing::TwoGroups;

struct Problem {
  std::vector<int> tokens;  // by rank
  int experts = 4;
  int top_k = 2;
  int hidden = 16;
  int alignment = 1;
  ExpertPlacement placement = {};
  DType dtype = DType::kFloat32;
  DType result = DType::kFloat32;
  bool scales = false;
  DType weights = DType::kFloat32;
  DType ids = DType::kInt64;
};

class DeviceExchange : public testing::HostDevices {
 protected:
  static void expect_the_bits_of_the_cpu(const Problem& problem, unsigned seed);
};

void DeviceExchange::expect_the_bits_of_the_cpu(const Problem& problem, unsigned seed) {
  const Ids ids = random_ids(seed, problem.tokens, problem.experts, problem.top_k);
  on_ranks(static_cast<int>(problem.tokens.size()), [&](Communicator& comm, const OnDevice& on) {
    TwoGroups groups = TwoGroups::make(comm,
                                       {.experts = problem.experts,
                                        .top_k = problem.top_k,
                                        .hidden = problem.hidden,
                                        .max_tokens_per_rank = *std::ranges::max_element(problem.tokens) + 1,
                                        .alignment = problem.alignment,
                                        .dtype = problem.dtype,
                                        .placement = problem.placement},
                                       on.device);
    const std::vector<std::int64_t> chosen = testing::flat(ids, comm.rank());
    const std::vector<std::int32_t> narrow(chosen.begin(), chosen.end());
    const bool wide = problem.ids == DType::kInt64;
    Twin routing(on, wide ? bytes_of(chosen) : bytes_of(narrow), problem.ids);
    ASSERT_TRUE(groups.host.prepare(groups.host_handle, {.ids = routing.host()}).ok());
    const Status prepared = groups.device.prepare(groups.device_handle, {.ids = routing.device(), .stream = on.stream});
    ASSERT_TRUE(prepared.ok()) << prepared.to_string();
    testing::expect_same_map(groups, on);

    const auto mine = static_cast<unsigned>(comm.rank());
    const auto tokens = static_cast<std::size_t>(problem.tokens[mine]),
               hidden = static_cast<std::size_t>(problem.hidden);
    const auto top_k = static_cast<std::size_t>(problem.top_k), of_row = (hidden + 127) / 128;
    const auto rows = static_cast<std::size_t>(groups.host_handle.recv_rows()), room = rows + 3;
    const auto random = [&](unsigned what, std::size_t count, DType dtype) {
      return Twin(on, random_elements(seed * 64 + what * 8 + mine, count, dtype), dtype);
    };
    Twin x = random(1, tokens * hidden, problem.dtype), y = random(2, room * hidden, problem.dtype);
    Twin weights = random(3, tokens * top_k, problem.weights), grad_weights(on, tokens * top_k, problem.weights);
    Twin grad_recv = random(4, room, problem.weights), recv_weights(on, room, problem.weights);
    Twin scales = random(5, tokens * of_row, DType::kFloat32), slot_scales = random(6, room * of_row, DType::kFloat32);
    Twin recv(on, room * hidden, problem.dtype), recv_scales(on, room * of_row, DType::kFloat32);
    Twin result(on, tokens * hidden, problem.result);

    // Once for each side: its group, its handle, and which array of a pair.
    const auto on_both = [&](std::string_view what, const auto& call) {
      const Status expected = call(groups.host, groups.host_handle, [](Twin& twin) { return twin.host(); });
      const Status found = call(groups.device, groups.device_handle, [](Twin& twin) { return twin.device(); });
      ASSERT_TRUE(expected.ok()) << what << ": " << expected.to_string();
      ASSERT_TRUE(found.ok()) << what << ": " << found.to_string();
    };
    on_both("dispatch", [&](ExpertGroup& group, const ExpertHandle& handle, auto of) {
      ExpertDispatch call{.tokens = of(x),
                          .weights = of(weights),
                          .recv_tokens = of(recv),
                          .recv_weights = of(recv_weights),
                          .stream = on.stream};
      if (problem.scales) call.scales = of(scales), call.recv_scales = of(recv_scales);
      return group.dispatch(handle, call);
    });
    recv.expect_equal("rows of dispatch");
    recv_weights.expect_equal("weights of dispatch");
    recv_scales.expect_equal("scales of dispatch");
    for (const bool weighted : {false, true}) {
      on_both("combine", [&](ExpertGroup& group, const ExpertHandle& handle, auto of) {
        ExpertCombine call{.expert_out = of(y), .result = of(result), .stream = on.stream};
        if (problem.scales) call.scales = of(slot_scales);
        if (weighted) call.weights = of(weights);
        return group.combine(handle, call);
      });
      result.expect_equal(weighted ? "weighted combine" : "combine");
    }
    on_both("dispatch_backward", [&](ExpertGroup& group, const ExpertHandle& handle, auto of) {
      return group.dispatch_backward(handle, {.grad = of(y),
                                              .grad_recv_weights = of(grad_recv),
                                              .grad_tokens = of(result),
                                              .grad_weights = of(grad_weights),
                                              .stream = on.stream});
    });
    result.expect_equal("grad_tokens");
    grad_weights.expect_equal("grad_weights");
    on_both("combine_backward", [&](ExpertGroup& group, const ExpertHandle& handle, auto of) {
      return group.combine_backward(handle, {.grad = of(x), .grad_expert_out = of(recv), .stream = on.stream});
    });
    recv.expect_equal("grad_expert_out");
  });
}

TEST_F(DeviceExchange, any_number_of_ranks_and_choices) {
  expect_the_bits_of_the_cpu({.tokens = {5}}, 1);
  expect_the_bits_of_the_cpu({.tokens = {7, 3}, .experts = 6, .top_k = 3, .alignment = 4}, 2);
  expect_the_bits_of_the_cpu({.tokens = {4, 0, 9}, .experts = 12, .top_k = 1, .ids = DType::kInt32}, 3);
  expect_the_bits_of_the_cpu({.tokens = {6, 11, 0, 2}, .experts = 16, .top_k = 8, .alignment = 2}, 4);
}

TEST_F(DeviceExchange, nobody_has_a_token) { expect_the_bits_of_the_cpu({.tokens = {0, 0}}, 5); }

TEST_F(DeviceExchange, more_choices_than_a_chunk_holds) {
  expect_the_bits_of_the_cpu({.tokens = {90, 140}, .experts = 8, .top_k = 5, .hidden = 4, .alignment = 8}, 6);
}

TEST_F(DeviceExchange, every_dtype_and_width) {
  const Problem problems[] = {
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
  for (Problem problem : problems) {
    SCOPED_TRACE(to_string(problem.dtype));
    problem.experts = 8;
    problem.top_k = 4;
    expect_the_bits_of_the_cpu(problem, ++seed);
  }
}

TEST_F(DeviceExchange, placements_with_replicas_and_ranks_without_experts) {
  expect_the_bits_of_the_cpu(
      {.tokens = {8, 5, 6}, .experts = 5, .top_k = 3, .placement = {{0, 3}, {0, 1, 2, 3}, {1, 3, 4}}}, 30);
  expect_the_bits_of_the_cpu({.tokens = {8, 5, 6}, .experts = 3, .top_k = 2, .placement = {{0, 1, 2}, {}, {1}}}, 31);
}

TEST_F(DeviceExchange, many_random_problems) {
  std::mt19937 random(7);
  const auto any = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  for (unsigned seed = 100; seed < (kSanitized ? 104 : 116); ++seed) {
    Problem problem{.tokens = std::vector<int>(static_cast<std::size_t>(any(1, 4)))};
    for (int& tokens : problem.tokens) tokens = any(0, 20);
    problem.experts = static_cast<int>(problem.tokens.size()) * any(1, 5);
    problem.top_k = any(1, std::min(8, problem.experts));
    problem.hidden = any(1, 40);
    problem.alignment = any(1, 9);
    SCOPED_TRACE(seed);
    expect_the_bits_of_the_cpu(problem, seed);
  }
}

/// Values whose sums are exact, so that the definition gives them in any order.
TEST_F(DeviceExchange, the_definition_gives_the_same) {
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
