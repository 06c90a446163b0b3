#pragma once
// Checks that hold for every plan that is imported from MSCCL++.

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "plan/json.hpp"
#include "plan/mscclpp.hpp"
#include "plan/verifier.hpp"
#include "unit/plan/interpreter.hpp"
#include "unit/plan/mscclpp_plans.hpp"

namespace accord::plan::testing {

/// A change of a plan, and the words with which it is rejected.
struct Damage {
  const char* name;
  std::function<void(Text&)> make;
  const char* message;
};

inline Plan imported(const Text& text, SwitchOps ops = SwitchOps::kMulticast) {
  const Result<Plan> plan = import_mscclpp(text.text(), ops);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? *plan : Plan{};
}

inline Status refusal(const Text& text, SwitchOps ops = SwitchOps::kMulticast) {
  const Result<Plan> plan = import_mscclpp(text.text(), ops);
  EXPECT_FALSE(plan.ok()) << to_json(*plan);
  return plan.status();
}

/// Expects that the verifier accepts the plan, also for devices, that the interpreter, which knows nothing of MSCCL++,
/// runs it correctly, and that the plan is the same after it was written and read.
inline void expect_correct(const Plan& plan, std::mt19937& random) {
  for (const Aliasing aliasing : {Aliasing::kOutOfPlace, Aliasing::kInPlace}) {
    EXPECT_TRUE(verify(plan, aliasing).ok()) << verify(plan, aliasing).to_string();
    for (const std::size_t count : {1, 7, 64, 500}) {
      const MachineRequest request{.aliasing = aliasing, .count = count, .slice = 9, .combine = add};
      const auto wrong = run_randomly(plan, request, random);
      EXPECT_FALSE(wrong) << *wrong;
    }
  }
  EXPECT_TRUE(verify_without_packets(plan).ok()) << verify_without_packets(plan).to_string();
  const Result<Plan> back = plan_from_json(to_json(plan));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, plan);
}

/// Any single number or text of a plan may be anything: the result is a correct plan, or a rejection.
inline void expect_changes_harmless(const Text& text, SwitchOps ops, int changes, std::mt19937& random) {
  const Json flat = text.json.flatten();
  std::vector<std::string> paths;
  for (const auto& [path, value] : flat.items()) paths.push_back(path);
  for (int i = 0; i < changes; ++i) {
    Text changed = text;
    Json& place = changed.json[Json::json_pointer(paths[random() % paths.size()])];
    const std::vector<Json> values = {Json(0),   Json(1),       Json(-1),     Json(1ULL << 40),
                                      Json("x"), Json(nullptr), Json::array()};
    place = values[random() % values.size()];
    const Result<Plan> plan = import_mscclpp(changed.text(), ops);
    EXPECT_TRUE(!plan.ok() || verify_for_calls(*plan).ok());
  }
}

}  // namespace accord::plan::testing
