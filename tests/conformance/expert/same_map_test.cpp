// Preparing a map again for the same input of all ranks gives the same map.
#include <gtest/gtest.h>

#include "accord/expert_parallel.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

TEST(ExpertMaps, preparing_a_map_again_for_equal_ids_gives_the_same_map) {
  CommunicatorOptions options;
  options.transport = "inproc";
  testing::run_thread_ranks(2, options, [](Communicator comm) {
    Result<ExpertGroup> group = ExpertGroup::create(comm, {.experts = 4,
                                                           .top_k = 2,
                                                           .hidden = 3,
                                                           .max_tokens_per_rank = 4,
                                                           .max_recv_rows = 3,
                                                           .dtype = DType::kFloat32,
                                                           .overflow = OverflowPolicy::kDropByWeight});
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    const ExpertHandle handle = *group->make_handle();
    const std::vector<std::int32_t> chosen = {0, 1}, others = {1, 0};
    const std::vector<float> weights = {0.5F, 0.25F}, turned = {0.25F, 0.5F};
    // Only rank 1's input differs.
    const auto fingerprint_of = [&](const std::vector<std::int32_t>& of_one, const std::vector<float>& its_weights) {
      const std::vector<std::int32_t>& ids = comm.rank() == 1 ? of_one : chosen;
      const std::vector<float>& w = comm.rank() == 1 ? its_weights : weights;
      const ExpertRouting routing{.ids = {ids.data(), 2, DType::kInt32}, .weights = {w.data(), 2, DType::kFloat32}};
      EXPECT_TRUE(group->prepare(handle, routing).ok());
      return handle.fingerprint();
    };
    const std::uint64_t first = fingerprint_of(chosen, weights);
    EXPECT_EQ(fingerprint_of(chosen, weights), first);
    EXPECT_EQ(handle.generation(), 1U);
    EXPECT_NE(fingerprint_of(others, weights), first);
    EXPECT_EQ(handle.generation(), 2U);
    EXPECT_NE(fingerprint_of(chosen, turned), first) << "another choice is dropped";
    EXPECT_EQ(handle.generation(), 3U);
    EXPECT_EQ(fingerprint_of(chosen, weights), first);
    EXPECT_EQ(handle.generation(), 4U);
  });
}

}  // namespace
}  // namespace accord
