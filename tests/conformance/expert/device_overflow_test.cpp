// More rows than a rank can receive: devices drop the same rows as the CPU, and a failure is a number there, not a
// trap.
#include "conformance/expert/device_overflow.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sanitized.hpp"

namespace accord {
namespace {

using testing::config_of;
using testing::DeviceArray;
using ::testing::HasSubstr;
using testing::kSanitized;
using testing::OnDevice;
using testing::OverflowProblem;

class DeviceOverflow : public testing::HostDevices {
 protected:
  static void expect_the_same_choices(const OverflowProblem& problem, unsigned seed) {
    on_ranks(static_cast<int>(problem.tokens.size()),
             [&](Communicator& comm, const OnDevice& on) { testing::check_device_overflow(comm, on, problem, seed); });
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

TEST_F(DeviceOverflow, drops_by_weight_among_many_random_weights) {
  std::mt19937 random(9);
  const auto any = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  for (unsigned seed = 300; seed < (kSanitized ? 303 : 312); ++seed) {
    OverflowProblem problem{.tokens = std::vector<int>(static_cast<std::size_t>(any(1, 4))), .any_weights = true};
    for (int& tokens : problem.tokens) tokens = any(1, 60);
    problem.experts = static_cast<int>(problem.tokens.size()) * any(1, 5);
    problem.top_k = any(1, std::min(6, problem.experts));
    problem.alignment = any(1, 9);
    problem.capacity = any(1, 100);
    SCOPED_TRACE(seed);
    expect_the_same_choices(problem, seed);
  }
}

TEST_F(DeviceOverflow, drops_by_weight_with_so_many_experts_that_a_pass_finds_few_bits) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << "6,000 experts take longer than the timeout of a minute";
  expect_the_same_choices(
      {.tokens = {30, 25}, .experts = 6000, .top_k = 5, .alignment = 2, .capacity = 60, .any_weights = true}, 9);
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
