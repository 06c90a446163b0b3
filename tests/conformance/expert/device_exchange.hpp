#pragma once
// Every call of an expert group on devices, next to the same call on the CPU with the same input.

#include <gtest/gtest.h>

#include "conformance/expert/device_ranks.hpp"

namespace accord::testing {

struct ExpertProblem {
  std::vector<int> tokens;  // indexed by rank
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
  Ids chosen = {};  // random if empty
  ExpertAlgorithm algorithm = ExpertAlgorithm::kAuto;
};

/// Runs one rank's part. All ranks pass the same problem and seed.
inline void check_device_exchange(Communicator& comm, const OnDevice& on, const ExpertProblem& problem, unsigned seed) {
  const Ids ids =
      problem.chosen.empty() ? random_ids(seed, problem.tokens, problem.experts, problem.top_k) : problem.chosen;
  TwoGroups groups = TwoGroups::make(comm,
                                     {.experts = problem.experts,
                                      .top_k = problem.top_k,
                                      .hidden = problem.hidden,
                                      .max_tokens_per_rank = *std::ranges::max_element(problem.tokens) + 1,
                                      .alignment = problem.alignment,
                                      .dtype = problem.dtype,
                                      .placement = problem.placement},
                                     on.device, problem.algorithm);
  const std::vector<std::int64_t> chosen = flat(ids, comm.rank());
  const std::vector<std::int32_t> narrow(chosen.begin(), chosen.end());
  const bool wide = problem.ids == DType::kInt64;
  Twin routing(on, wide ? bytes_of(chosen) : bytes_of(narrow), problem.ids);
  ASSERT_TRUE(groups.host.prepare(groups.host_handle, {.ids = routing.host()}).ok());
  const Status prepared = groups.device.prepare(groups.device_handle, {.ids = routing.device(), .stream = on.stream});
  ASSERT_TRUE(prepared.ok()) << prepared.to_string();
  expect_same_map(groups, on);

  const auto mine = static_cast<unsigned>(comm.rank());
  const auto tokens = static_cast<std::size_t>(problem.tokens[mine]), hidden = static_cast<std::size_t>(problem.hidden);
  const auto top_k = static_cast<std::size_t>(problem.top_k), of_row = (hidden + 127) / 128;
  const auto rows = static_cast<std::size_t>(groups.host_handle.recv_rows()), room = rows + 3;
  const auto random = [&](unsigned label, std::size_t count, DType dtype) {
    return Twin(on, random_elements(seed * 64 + label * 8 + mine, count, dtype), dtype);
  };
  Twin x = random(1, tokens * hidden, problem.dtype), y = random(2, room * hidden, problem.dtype);
  Twin weights = random(3, tokens * top_k, problem.weights), grad_weights(on, tokens * top_k, problem.weights);
  Twin grad_recv = random(4, room, problem.weights), recv_weights(on, room, problem.weights);
  Twin scales = random(5, tokens * of_row, DType::kFloat32), slot_scales = random(6, room * of_row, DType::kFloat32);
  Twin recv(on, room * hidden, problem.dtype), recv_scales(on, room * of_row, DType::kFloat32);
  Twin result(on, tokens * hidden, problem.result);

  // Makes the call on both sides: `call` gets the side's group, its handle, and a function that picks its array of a
  // pair.
  const auto on_both = [&](std::string_view label, const auto& call) {
    const Status expected = call(groups.host, groups.host_handle, [](Twin& twin) { return twin.host(); });
    const Status found = call(groups.device, groups.device_handle, [](Twin& twin) { return twin.device(); });
    ASSERT_TRUE(expected.ok()) << label << ": " << expected.to_string();
    ASSERT_TRUE(found.ok()) << label << ": " << found.to_string();
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
}

}  // namespace accord::testing
