// The selector's promises about an algorithm without its plan, compared with lowering's results for the plan.
#include "exec/lowered.hpp"

#include <gtest/gtest.h>

#include "plan/algorithms.hpp"

namespace accord::exec {
namespace {

TEST(Lowering, window_plans_serve_other_buffers_exactly_if_they_only_read) {
  constexpr int kRanks = 3;
  constexpr DomainLayout kLayout{.members = kRanks, .signals = 8, .slot_bytes = 1 << 16};
  const topology::Topology topology = topology::Topology::uniform(kRanks);
  int only_read = 0, others = 0;
  for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
    if (entry.buffers == plan::Buffers::kAnywhere) continue;
    const plan::Plan plan = entry.make(topology, {.collective = entry.collective}).value();
    bool serves = true;
    for (int rank = 0; rank < kRanks; ++rank) {
      RequestRecord request{.collective = entry.collective, .count = 1000};
      serves = lower(plan, rank, kLayout, 1 << 16, request).ok() && serves;
      request.phase = Phase::kRegistered;
      EXPECT_TRUE(lower(plan, rank, kLayout, 1 << 16, request).ok()) << entry.name;
    }
    EXPECT_EQ(serves, entry.only_reads) << to_string(entry.collective) << " " << entry.name;
    ++(entry.only_reads ? only_read : others);
  }
  EXPECT_GT(only_read, 0);
  EXPECT_GT(others, 0);
}

TEST(Lowering, refuses_more_ranks_than_operands_can_name) {
  const auto entry = plan::algorithm_by_name(Collective::kBarrier, "dissemination").value();
  const auto code_for = [&](int ranks) {
    const topology::Topology topology = topology::Topology::uniform(ranks);
    const plan::Plan plan = entry->make(topology, {.collective = Collective::kBarrier, .only_rank = 0}).value();
    const DomainLayout layout{.members = ranks, .signals = plan.signals, .slot_bytes = 1 << 16};
    return lower(plan, 0, layout, 1 << 16, {.collective = Collective::kBarrier}).status().code();
  };
  EXPECT_LE(Operand::bases(Operand::kMaxMembers), 1 << 16);
  EXPECT_EQ(code_for(Operand::kMaxMembers), StatusCode::kOk);
  EXPECT_EQ(code_for(Operand::kMaxMembers + 1), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace accord::exec
