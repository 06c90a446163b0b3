#pragma once
// A small step of an expert group on devices.

#include <gtest/gtest.h>

#include "conformance/expert/device_ranks.hpp"

namespace accord::testing {

inline ExpertGroupConfig small_expert_config(const OnDevice& on) {
  return {.experts = 4,
          .top_k = 2,
          .hidden = 4,
          .max_tokens_per_rank = 4,
          .max_recv_rows = 16,
          .dtype = DType::kFloat32,
          .device = on.device};
}

/// Two tokens that choose experts 0 and 3, which belong to the first and the last rank.
struct ExpertStep {
  ExpertStep(Communicator& comm, const OnDevice& where) : ExpertStep(comm, where, small_expert_config(where)) {}
  ExpertStep(Communicator& comm, const OnDevice& where, const ExpertGroupConfig& config)
      : on(where),
        group(made(comm, config)),
        handle(group.make_handle().value()),
        ids(where, std::vector<std::int64_t>{0, 3, 0, 3}, DType::kInt64),
        x(where, std::vector<float>(8, 1.0F + static_cast<float>(comm.rank())), DType::kFloat32),
        recv(where, std::vector<float>(64, 9.0F), DType::kFloat32),
        result(where, std::vector<float>(8), DType::kFloat32) {}
  Status prepare() { return group.prepare(handle, {.ids = ids.buffer(), .stream = on.stream}); }
  Status dispatch() {
    return group.dispatch(handle, {.tokens = x.buffer(), .recv_tokens = recv.buffer(), .stream = on.stream});
  }
  Status combine() {
    return group.combine(handle, {.expert_out = recv.buffer(), .result = result.buffer(), .stream = on.stream});
  }
  void all() {
    for (const Status& status : {prepare(), dispatch(), combine()}) ASSERT_TRUE(status.ok()) << status.to_string();
  }
  void expect_sums(float of_token) const { EXPECT_EQ(result.values<float>(), std::vector<float>(8, of_token)); }
  /// Waits until the group has failed and returns its failure.
  Status failure() {
    on.synchronize();
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (group.communicator().status().ok() && std::chrono::steady_clock::now() < late) std::this_thread::yield();
    return combine();
  }

  const OnDevice on;
  ExpertGroup group;
  ExpertHandle handle;
  DeviceArray ids, x, recv, result;
};

}  // namespace accord::testing
