// A buffer that a rank gives although it gets no rows must be as valid as those of the other ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "accord/expert_parallel.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Rank 0 gets four rows, rank 1 none. Each dispatches one token, and rank 1 passes `change`d arguments.
void expect_refused(const std::function<void(ExpertDispatch&)>& change, const std::string& text) {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(60);
  options.transport = "inproc";
  testing::run_thread_ranks(2, options, [&](Communicator comm) {
    Result<ExpertGroup> group = ExpertGroup::create(
        comm, {.experts = 4, .top_k = 2, .hidden = 3, .max_tokens_per_rank = 4, .dtype = DType::kFloat32});
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    const ExpertHandle handle = group->make_handle().value();
    const std::vector<std::int32_t> chosen = {0, 1};
    ASSERT_TRUE(group->prepare(handle, {.ids = {chosen.data(), chosen.size(), DType::kInt32}}).ok());
    ASSERT_EQ(handle.recv_rows(), comm.rank() == 0 ? 4 : 0);
    std::vector<float> x(3), y(12), weights(2), recv_weights(4);
    const auto buffer = [](std::vector<float>& list) { return Buffer{list.data(), list.size(), DType::kFloat32, {}}; };
    const ExpertDispatch valid{.tokens = buffer(x),
                               .weights = buffer(weights),
                               .recv_tokens = buffer(y),
                               .recv_weights = buffer(recv_weights)};
    ExpertDispatch call = valid;
    if (comm.rank() == 1) change(call);
    const Status refused = group->dispatch(handle, call);
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused.to_string();
    EXPECT_THAT(refused.message(), HasSubstr("rank 1: " + text));
    EXPECT_THAT(refused.ranks(), ElementsAre(1));
    EXPECT_TRUE(group->dispatch(handle, valid).ok());
  });
}

TEST(ExpertBuffersWithoutRows, have_the_dtype_of_the_call) {
  expect_refused([](ExpertDispatch& call) { call.recv_weights.dtype = DType::kInt32; },
                 "recv_weights is int32, it has to be float32");
}

TEST(ExpertBuffersWithoutRows, are_on_the_device_of_the_group) {
  expect_refused(
      [](ExpertDispatch& call) {
        call.recv_tokens.device = {DeviceType::kCuda, 0};
      },
      "recv_tokens is on cuda:0, but the group's device is cpu");
}

}  // namespace
}  // namespace accord
