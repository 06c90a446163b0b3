// Repeating a step allocates no memory.
#include <gtest/gtest.h>

#include "accord/expert_parallel.hpp"
#include "conformance/expert/reference.hpp"
#include "counted_allocations.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using testing::random_ids;
using testing::run_thread_ranks;

void expect_no_allocations(bool in_window) {
  CommunicatorOptions options;
  options.transport = "inproc";
  const testing::Ids ids = random_ids(3, {20, 30, 10, 30}, 8, 3);
  run_thread_ranks(4, options, [&](Communicator comm) {
    constexpr std::size_t kHidden = 256;
    const ExpertGroupConfig config{
        .experts = 8, .top_k = 3, .hidden = kHidden, .max_tokens_per_rank = 30, .dtype = DType::kFloat32};
    Result<ExpertGroup> group = ExpertGroup::create(comm, config);
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    Result<Window> window = comm.window(std::size_t{1} << 20);
    ASSERT_TRUE(window.ok() && group->add_window(*window).ok());
    const Result<ExpertHandle> handle = group->make_handle();
    ASSERT_TRUE(handle.ok());
    std::vector<std::int64_t> flat;
    for (const auto& token : ids[static_cast<std::size_t>(comm.rank())])
      flat.insert(flat.end(), token.begin(), token.end());
    const std::size_t tokens = flat.size() / 3;
    std::vector<float> private_x(tokens * kHidden), private_y(120 * kHidden), w(flat.size()), recv_w(120);
    const WindowBlock x_block = *window->allocate(private_x.size() * 4),
                      y_block = *window->allocate(private_y.size() * 4);
    const Buffer x = in_window ? x_block.buffer(private_x.size(), DType::kFloat32)
                               : Buffer{private_x.data(), private_x.size(), DType::kFloat32, {}};
    const Buffer y = in_window ? y_block.buffer(private_y.size(), DType::kFloat32)
                               : Buffer{private_y.data(), private_y.size(), DType::kFloat32, {}};
    const Buffer weights{w.data(), w.size(), DType::kFloat32, {}},
        recv_weights{recv_w.data(), 120, DType::kFloat32, {}};
    for (int step = 0; step < 8; ++step) {
      ASSERT_TRUE(comm.barrier().ok());
      const std::size_t before = allocations;
      ASSERT_TRUE(group->prepare(*handle, {.ids = {flat.data(), flat.size(), DType::kInt64}}).ok());
      ASSERT_TRUE(
          group->dispatch(*handle, {.tokens = x, .weights = weights, .recv_tokens = y, .recv_weights = recv_weights})
              .ok());
      ASSERT_TRUE(group->combine(*handle, {.expert_out = y, .weights = weights, .result = x}).ok());
      ASSERT_TRUE(
          group
              ->dispatch_backward(
                  *handle, {.grad = y, .grad_recv_weights = recv_weights, .grad_tokens = x, .grad_weights = weights})
              .ok());
      ASSERT_TRUE(group->combine_backward(*handle, {.grad = x, .grad_expert_out = y}).ok());
      if (step >= 3) {
        EXPECT_EQ(allocations, before) << "step " << step;
      }
    }
    ASSERT_TRUE(comm.barrier().ok());  // so that no rank sees another one leave
  });
}

TEST(ExpertMemory, a_step_in_shared_memory_allocates_nothing) {
  expect_no_allocations(false);
  expect_no_allocations(true);
}

}  // namespace
}  // namespace accord
