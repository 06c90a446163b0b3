#pragma once
// Plans that the tests take for granted: whole plans of the built-in algorithms; and functions that break them.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "plan/algorithms.hpp"
#include "plan/verifier.hpp"

namespace accord::plan::testing {

inline Plan whole_plan(const AlgorithmEntry& entry, int size, Rank root = 0) {
  Result<Plan> plan = entry.make(topology::Topology::uniform(size), {.collective = entry.collective, .root = root});
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? *plan : Plan{};
}

inline Plan whole_plan(Collective collective, std::string_view name, int size, Rank root = 0) {
  const auto entry = algorithm_by_name(collective, name);
  EXPECT_TRUE(entry.ok()) << entry.status().to_string();
  return whole_plan(**entry, size, root);
}

inline bool has_root(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

/// Returns all of them for `size` ranks. The last rank is the root of those that have one.
inline std::vector<Plan> all_plans(int size) {
  std::vector<Plan> plans;
  for (const AlgorithmEntry& entry : algorithms()) {
    plans.push_back(whole_plan(entry, size, has_root(entry.collective) ? size - 1 : 0));
  }
  return plans;
}

inline std::vector<Step>& steps_of(Plan& plan, Rank rank, int lane = 0) {
  return plan.programs.at(static_cast<std::size_t>(rank)).lanes.at(static_cast<std::size_t>(lane)).steps;
}

inline std::size_t find_step(const std::vector<Step>& steps, StepKind kind, int nth = 0) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].kind == kind && nth-- == 0) return i;
  }
  ADD_FAILURE() << "no such step";
  return 0;
}

inline void erase_step(std::vector<Step>& steps, std::size_t index) {
  steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(index));
}

/// Returns why verify() rejects a plan.
inline std::string refusal(const Plan& plan, Aliasing aliasing = Aliasing::kOutOfPlace) {
  const Status status = verify(plan, aliasing);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << to_string(plan) << " was accepted";
  return status.message();
}

}  // namespace accord::plan::testing
