// More rows than a rank can receive: devices drop the same rows as the CPU, and a failure is a number there, not a
// trap.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "conformance/expert/device_ranks.hpp"

namespace accord {
namespace {

using testing::bytes_of;
using testing::DeviceArray;
using ::testing::HasSubstr;
using testing::Ids;
using testing::OnDevice;
using testing::random_ids;
using testing::Twin;
using testing::TwoGroups;

struct OverflowProblem {
  std::vector<int> tokens;
  int experts = 6, top_k = 3, alignment = 1;
  std::int64_t capacity = 0;
  OverflowPolicy policy = OverflowPolicy::kDropByWeight;
  ExpertPlacement placement = {};
};

class DeviceOverflow : public testing::HostDevices {
 protected:
  /// Returns weights with few distinct values, so that some are equal; NaN, infinities and both zeros are among them.
  static std::vector<float> some_weights(unsigned seed, std::size_t count) {
    constexpr float kWeights[] = {0.5F, 0.25F, -0.0F, 0.0F, -1.0F, NAN, -INFINITY, INFINITY, 1e-40F, 0.75F, -0.25F};
    std::mt19937 random(seed);
    std::vector<float> weights(count);
    for (float& weight : weights) weight = kWeights[random() % std::size(kWeights)];
    return weights;
  }

  static ExpertGroupConfig config_of(const OverflowProblem& problem) {
    return {.experts = problem.experts,
            .top_k = problem.top_k,
            .hidden = 8,
            .max_tokens_per_rank = std::max(1, *std::ranges::max_element(problem.tokens)),
            .max_recv_rows = problem.capacity,
            .alignment = problem.alignment,
            .dtype = DType::kFloat32,
            .overflow = problem.policy,
            .placement = problem.placement};
  }

  static void expect_the_same_choices(const OverflowProblem& problem, unsigned seed) {
    const Ids ids = random_ids(seed, problem.tokens, problem.experts, problem.top_k);
    on_ranks(static_cast<int>(problem.tokens.size()), [&](Communicator& comm, const OnDevice& on) {
      TwoGroups groups = TwoGroups::make(comm, config_of(problem), on.device);
      Twin chosen(on, bytes_of(testing::flat(ids, comm.rank())), DType::kInt64);
      const std::size_t choices = chosen.host().count, tokens = choices / static_cast<std::size_t>(problem.top_k);
      Twin weights(on, bytes_of(some_weights(seed + static_cast<unsigned>(comm.rank()), choices)), DType::kFloat32);
      for (int round = 0; round < 2; ++round) {  // the second map keeps nothing of the first
        ASSERT_TRUE(groups.host.prepare(groups.host_handle, {.ids = chosen.host(), .weights = weights.host()}).ok());
        ASSERT_TRUE(groups.device
                        .prepare(groups.device_handle,
                                 {.ids = chosen.device(), .weights = weights.device(), .stream = on.stream})
                        .ok());
      }
      testing::expect_same_map(groups, on);
      const auto rows = static_cast<std::size_t>(groups.host_handle.recv_rows());
      Twin x(on, testing::random_elements(seed, tokens * 8, DType::kFloat32), DType::kFloat32);
      Twin recv(on, (rows + 1) * 8, DType::kFloat32), result(on, tokens * 8, DType::kFloat32);
      Twin grad(on, testing::random_elements(seed + 1, rows, DType::kFloat32), DType::kFloat32);
      Twin grad_weights(on, choices, DType::kFloat32);
      ASSERT_TRUE(groups.host.dispatch(groups.host_handle, {.tokens = x.host(), .recv_tokens = recv.host()}).ok());
      ASSERT_TRUE(
          groups.device
              .dispatch(groups.device_handle, {.tokens = x.device(), .recv_tokens = recv.device(), .stream = on.stream})
              .ok());
      recv.expect_equal("rows");
      ASSERT_TRUE(groups.host
                      .dispatch_backward(groups.host_handle, {.grad = recv.host(),
                                                              .grad_recv_weights = grad.host(),
                                                              .grad_tokens = result.host(),
                                                              .grad_weights = grad_weights.host()})
                      .ok());
      ASSERT_TRUE(groups.device
                      .dispatch_backward(groups.device_handle, {.grad = recv.device(),
                                                                .grad_recv_weights = grad.device(),
                                                                .grad_tokens = result.device(),
                                                                .grad_weights = grad_weights.device(),
                                                                .stream = on.stream})
                      .ok());
      result.expect_equal("grad_tokens");
      grad_weights.expect_equal("grad_weights");
    });
  }
};

TEST_F(DeviceOverflow, drops_by_weight_the_same_rows_as_the_cpu) {
  expect_the_same_choices({.tokens = {12, 9}, .capacity = 14}, 1);
  expect_the_same_choices({.tokens = {12, 9}, .alignment = 4, .capacity = 15}, 2);
  expect_the_same_choices({.tokens = {3, 14, 8}, .alignment = 3, .capacity = 9}, 3);
  expect_the_same_choices({.tokens = {12, 9}, .capacity = 1}, 4);
  expect_the_same_choices({.tokens = {12, 9}, .alignment = 8, .capacity = 7}, 5);  // no expert's rows fit
  expect_the_same_choices({.tokens = {2, 2}, .capacity = 500}, 6);                 // nothing overflows
  expect_the_same_choices({.tokens = {100, 120}, .top_k = 4, .alignment = 8, .capacity = 200}, 7);
  expect_the_same_choices({.tokens = {10, 10}, .capacity = 11, .placement = {{0, 1, 2, 3}, {0, 3, 4, 5}}}, 8);
}

TEST_F(DeviceOverflow, drops_by_slot_the_same_rows_as_the_cpu) {
  constexpr OverflowPolicy kBySlot = OverflowPolicy::kDropBySlot;
  expect_the_same_choices({.tokens = {12, 9}, .capacity = 14, .policy = kBySlot}, 11);
  expect_the_same_choices({.tokens = {12, 9}, .alignment = 4, .capacity = 15, .policy = kBySlot}, 12);
  expect_the_same_choices({.tokens = {3, 14, 8}, .alignment = 5, .capacity = 4, .policy = kBySlot}, 13);
  expect_the_same_choices({.tokens = {2, 2}, .capacity = 500, .policy = kBySlot}, 14);
}

TEST_F(DeviceOverflow, a_failure_moves_nothing_and_is_reported_on_request) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertGroupConfig config = config_of({.tokens = {4}, .experts = 4, .top_k = 2, .capacity = 5});
    config.overflow = OverflowPolicy::kFail;
    config.device = on.device;
    ExpertGroup group = testing::made(comm, config);
    const ExpertHandle handle = group.make_handle().value();
    // All choices go to the experts of rank 0.
    const DeviceArray many(on, std::vector<std::int64_t>{0, 1, 0, 1}, DType::kInt64);
    const DeviceArray x(on, std::vector<float>(16, 3.0F), DType::kFloat32),
        recv(on, std::vector<float>(80, 7.0F), DType::kFloat32),
        result(on, std::vector<float>(16, 7.0F), DType::kFloat32);
    const auto move = [&] {
      EXPECT_TRUE(
          group.dispatch(handle, {.tokens = x.buffer(), .recv_tokens = recv.buffer(), .stream = on.stream}).ok());
      EXPECT_TRUE(
          group.combine(handle, {.expert_out = recv.buffer(), .result = result.buffer(), .stream = on.stream}).ok());
    };
    ASSERT_TRUE(group.prepare(handle, {.ids = many.buffer(), .stream = on.stream}).ok());
    move();
    EXPECT_EQ(recv.values<float>(), std::vector<float>(80, 7.0F));
    EXPECT_EQ(result.values<float>(), std::vector<float>(16, 7.0F));
    std::vector<std::int64_t> numbers(5);
    const ConstBuffer there = handle.on_device().numbers;
    ASSERT_TRUE(on.runtime.copy(numbers.data(), there.data, there.bytes(), on.device, on.stream).ok());
    on.synchronize();
    EXPECT_EQ(numbers, (std::vector<std::int64_t>{0, 1, 1, 0, 0}));
    const Status fetched = handle.fetch(on.stream);
    EXPECT_EQ(fetched.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(fetched.message(), HasSubstr("rank 0 would get 8 rows; max_recv_rows is 5"));
    EXPECT_THAT(fetched.ranks(), ::testing::ElementsAre(0));
    EXPECT_FALSE(handle.prepared());
    EXPECT_EQ(handle.recv_rows(), 0);
    move();  // still moves nothing, and fails on no rank, as the others would wait for it
    const DeviceArray fits(on, std::vector<std::int64_t>{0, 3, comm.rank() == 0 ? 1 : -1, 0}, DType::kInt64);
    ASSERT_TRUE(group.prepare(handle, {.ids = fits.buffer(), .stream = on.stream}).ok());
    move();
    EXPECT_TRUE(handle.fetch(on.stream).ok());
    EXPECT_TRUE(handle.prepared());
    EXPECT_EQ(handle.recv_rows(), comm.rank() == 0 ? 5 : 2);
    EXPECT_EQ(result.values<float>()[0], 6.0F);
  });
}

TEST_F(DeviceOverflow, slots_without_room_are_dropped_and_counted) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertGroupConfig config = config_of({.tokens = {2}, .experts = 2, .top_k = 1, .policy = OverflowPolicy::kFail});
    config.device = on.device;
    ExpertGroup group = testing::made(comm, config);
    const ExpertHandle handle = group.make_handle().value();
    const DeviceArray ids(on, std::vector<std::int64_t>{0, 0}, DType::kInt64);  // four rows for rank 0
    const DeviceArray x(on, std::vector<float>(16, 1.0F + static_cast<float>(comm.rank())), DType::kFloat32),
        recv(on, std::vector<float>(24, 7.0F), DType::kFloat32), result(on, std::vector<float>(16), DType::kFloat32);
    const Buffer three{recv.buffer().data, 24, DType::kFloat32, on.device};
    ASSERT_TRUE(group.prepare(handle, {.ids = ids.buffer(), .stream = on.stream}).ok());
    ASSERT_TRUE(group.dispatch(handle, {.tokens = x.buffer(), .recv_tokens = three, .stream = on.stream}).ok());
    const std::vector<float> got = recv.values<float>();
    EXPECT_EQ(got[23], comm.rank() == 0 ? 2.0F : 7.0F);
    ASSERT_TRUE(group.combine(handle, {.expert_out = three, .result = result.buffer(), .stream = on.stream}).ok());
    const std::vector<float> sums = result.values<float>();
    EXPECT_EQ(sums[0], comm.rank() == 0 ? 1.0F : 2.0F);
    EXPECT_EQ(sums[15], comm.rank() == 0 ? 1.0F : 0.0F);  // there was no room for its row
    std::int64_t cut = -1;
    const auto* const numbers = static_cast<const std::int64_t*>(handle.on_device().numbers.data);
    ASSERT_TRUE(on.runtime.copy(&cut, numbers + 4, sizeof cut, on.device, on.stream).ok());
    on.synchronize();
    EXPECT_EQ(cut, comm.rank() == 0 ? 1 : 0);
  });
}

}  // namespace
}  // namespace accord
