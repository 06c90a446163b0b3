#pragma once
// Calls whose rows exceed the capacity, on devices and next to the same calls on the CPU.

#include <gtest/gtest.h>

#include <cmath>

#include "conformance/expert/device_ranks.hpp"

namespace accord::testing {

struct OverflowProblem {
  std::vector<int> tokens;
  int experts = 6, top_k = 3, alignment = 1;
  std::int64_t capacity = 0;
  OverflowPolicy policy = OverflowPolicy::kDropByWeight;
  ExpertPlacement placement = {};
  bool any_weights = false;  ///< random ones instead of a few values
  ExpertAlgorithm algorithm = ExpertAlgorithm::kAuto;
};

/// Returns weights with few distinct values, so that some are equal; NaN, infinities and both zeros are among them. Or
/// random bits.
inline std::vector<float> some_weights(unsigned seed, std::size_t count, bool any) {
  constexpr float kWeights[] = {0.5F, 0.25F, -0.0F, 0.0F, -1.0F, NAN, -INFINITY, INFINITY, 1e-40F, 0.75F, -0.25F};
  std::mt19937 random(seed);
  std::vector<float> weights(count);
  for (float& weight : weights)
    weight =
        any ? std::bit_cast<float>(static_cast<std::uint32_t>(random())) : kWeights[random() % std::size(kWeights)];
  return weights;
}

inline ExpertGroupConfig config_of(const OverflowProblem& problem) {
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

/// Runs one rank's part. All ranks pass the same problem and seed.
inline void check_device_overflow(Communicator& comm, const OnDevice& on, const OverflowProblem& problem,
                                  unsigned seed) {
  const Ids ids = random_ids(seed, problem.tokens, problem.experts, problem.top_k);
  TwoGroups groups = TwoGroups::make(comm, config_of(problem), on.device, problem.algorithm);
  Twin chosen(on, bytes_of(flat(ids, comm.rank())), DType::kInt64);
  const std::size_t choices = chosen.host().count, tokens = choices / static_cast<std::size_t>(problem.top_k);
  Twin weights(on, bytes_of(some_weights(seed + static_cast<unsigned>(comm.rank()), choices, problem.any_weights)),
               DType::kFloat32);
  for (int round = 0; round < 2; ++round) {  // the second map keeps nothing of the first
    ASSERT_TRUE(groups.host.prepare(groups.host_handle, {.ids = chosen.host(), .weights = weights.host()}).ok());
    ASSERT_TRUE(
        groups.device
            .prepare(groups.device_handle, {.ids = chosen.device(), .weights = weights.device(), .stream = on.stream})
            .ok());
  }
  expect_same_map(groups, on);
  const auto rows = static_cast<std::size_t>(groups.host_handle.recv_rows());
  Twin x(on, random_elements(seed, tokens * 8, DType::kFloat32), DType::kFloat32);
  Twin recv(on, (rows + 1) * 8, DType::kFloat32), result(on, tokens * 8, DType::kFloat32);
  Twin grad(on, random_elements(seed + 1, rows, DType::kFloat32), DType::kFloat32);
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
}

}  // namespace accord::testing
