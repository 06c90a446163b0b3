#include "comm/explain.hpp"

#include <gtest/gtest.h>

namespace accord::comm {
namespace {

TEST(Explain, a_group_is_described_host_by_host) {
  const topology::Topology topology(
      {{.host = "a", .process = 10, .cpus = {0, 1, 2, 5}, .numa_nodes = {0}, .cores = 2},
       {.host = "b", .process = 20, .cpus = {3}, .numa_nodes = {0, 1}, .cores = 1},
       {.host = "a", .process = 11, .cpus = {0, 1, 2, 5}, .numa_nodes = {0}, .cores = 2}});
  EXPECT_EQ(describe_group("tp", "ucx", topology),
            "group \"tp\": 3 ranks on 2 hosts, over ucx\n"
            "  host 0 (a)\n"
            "    rank 0: process 10, 2 cores (processors 0-2, 5), memory node 0\n"
            "    rank 2: process 11, 2 cores (processors 0-2, 5), memory node 0\n"
            "  host 1 (b)\n"
            "    rank 1: process 20, 1 core (processors 3), memory nodes 0-1");
}

TEST(Explain, a_choice_is_described_with_its_steps) {
  exec::LoweredPlan plan;
  plan.lanes = {std::vector<exec::LoweredStep>(3), std::vector<exec::LoweredStep>(4)};
  plan.rounds = 2;
  plan.record = {.collective = Collective::kAllReduce, .dtype = DType::kFloat16, .op = ReduceOp::kMax, .count = 1024};
  EXPECT_EQ(describe_choice("tp", "ring", plan),
            "group \"tp\": all_reduce of 1024 x float16 (max), 2 KiB: ring, 7 steps in 2 lanes, 2 rounds");
}

}  // namespace
}  // namespace accord::comm
