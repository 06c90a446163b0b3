#include "plan/json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "plan/verifier.hpp"
#include "unit/plan/plans_for_tests.hpp"

namespace accord::plan {
namespace {

using testing::all_plans;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::whole_plan;

constexpr std::string_view kPlan = R"({
"format": "accord-plan", "version": 1, "name": "by \"hand\"", "collective": "all_reduce", "size": 1, "root": 0,
"order": "canonical", "pacing": "by_plan", "signals": 0,
"chunks": {"input": 1, "output": 1, "scratch": 1, "packets": 0},
"programs": [{"lanes": [[{"step": "copy", "from": [[0, "input", 0]], "to": [[0, "scratch", 0], [0, "output", 0]]},
                         {"step": "lane_barrier", "id": 3}], [{"step": "lane_barrier", "id": 3}]]}]})";

std::string with(std::string_view from, std::string_view to) {
  std::string text(kPlan);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

std::string json_refusal(std::string_view text, StatusCode code = StatusCode::kCorrupt) {
  const auto plan = plan_from_json(text);
  EXPECT_FALSE(plan.ok()) << text;
  EXPECT_EQ(plan.status().code(), code) << plan.status().to_string();
  return plan.status().message();
}

TEST(PlanJson, every_built_in_plan_is_read_back_equal) {
  for (const int size : {1, 2, 3, 5, 16}) {
    for (const Plan& plan : all_plans(size)) {
      const auto back = plan_from_json(to_json(plan));
      ASSERT_TRUE(back.ok()) << back.status().to_string();
      EXPECT_EQ(*back, plan) << to_json(plan);
    }
  }
}

TEST(PlanJson, a_plan_of_one_rank_is_read_back_equal) {
  const auto entry = algorithm_by_name(Collective::kAllReduce, "two_shot");
  const auto plan =
      (*entry)->make(topology::Topology::uniform(3), {.collective = Collective::kAllReduce, .only_rank = 1});
  const auto back = plan_from_json(to_json(*plan));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(*back, *plan);
}

TEST(PlanJson, reads_the_documented_format) {
  const auto plan = plan_from_json(kPlan);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  Plan expected{.name = "by \"hand\"",
                .collective = Collective::kAllReduce,
                .size = 1,
                .root = 0,
                .order = Order::kCanonical,
                .pacing = Pacing::kByPlan,
                .input_chunks = 1,
                .output_chunks = 1,
                .scratch_chunks = 1,
                .programs = {}};
  const Step barrier{.kind = StepKind::kLaneBarrier, .id = 3, .destinations = {}, .sources = {}};
  const Step copy{.kind = StepKind::kCopy, .destinations = {scratch(0, 0), output(0, 0)}, .sources = {input(0, 0)}};
  expected.programs = {{.lanes = {{.steps = {copy, barrier}}, {.steps = {barrier}}}}};
  EXPECT_EQ(*plan, expected);
  EXPECT_TRUE(verify(*plan, Aliasing::kInPlace).ok());
}

TEST(PlanJson, errors_give_the_location) {
  EXPECT_THAT(json_refusal(with("\"size\": 1", "\"size\": \"1\"")),
              HasSubstr("plan JSON: size: expected a whole number"));
  EXPECT_THAT(json_refusal(with("\"size\": 1", "\"size\": 99999999999")),
              HasSubstr("size: expected a whole number of 32 bits"));
  EXPECT_THAT(json_refusal(with("\"size\": 1", "\"size\": 1.5")), HasSubstr("size: expected a whole number"));
  EXPECT_THAT(json_refusal(with("\"size\": 1", "\"sise\": 1")), AllOf(HasSubstr("sise"), HasSubstr("size")));
  EXPECT_THAT(json_refusal(with("\"packets\": 0", "\"packets\": 0, \"partials\": \"x\"")),
              HasSubstr("chunks.partials: expected a whole number"));
  EXPECT_THAT(json_refusal(with("\"packets\": 0", "\"packets\": 0, \"partial\": 1")),
              HasSubstr("unknown key \"partial\""));
  EXPECT_THAT(json_refusal(with("\"signals\": 0,", "")), HasSubstr("lacks \"signals\""));
  EXPECT_THAT(json_refusal(with("all_reduce", "allreduce")),
              AllOf(HasSubstr("plan JSON: collective: "), HasSubstr("all_reduce")));
  EXPECT_THAT(json_refusal(with("\"canonical\"", "\"cannonical\"")),
              AllOf(HasSubstr("order: "), HasSubstr("canonical")));
  EXPECT_THAT(json_refusal(with("\"scratch\": 1,", "\"scratch\": -1,")), HasSubstr("a count of -1 chunks"));
  EXPECT_THAT(json_refusal(with("\"copy\"", "\"kopy\"")),
              AllOf(HasSubstr("programs[0].lanes[0][0].step: "), HasSubstr("copy")));
  EXPECT_THAT(json_refusal(with("[0, \"scratch\", 0]", "[0, \"scratch\", 1]")),
              HasSubstr("programs[0].lanes[0][0]: scratch[1] of rank 0 is out of bounds"));
  EXPECT_THAT(json_refusal(with("[0, \"scratch\", 0]", "[0, \"skratch\", 0]")),
              AllOf(HasSubstr("programs[0].lanes[0][0].to[0][1]: "), HasSubstr("scratch")));
  EXPECT_THAT(json_refusal(with("[0, \"scratch\", 0]", "[0, \"scratch\"]")),
              HasSubstr("programs[0].lanes[0][0].to[0]: a chunk is [rank, space, index]"));
  EXPECT_THAT(json_refusal(with("\"id\": 3}]]", "\"id\": 3, \"peer\": 1}]]")),
              HasSubstr("programs[0].lanes[1][0]: unknown key \"peer\""));
  EXPECT_THAT(json_refusal(with("[{\"step\": \"lane_barrier\", \"id\": 3}]]", "[7]]")),
              HasSubstr("programs[0].lanes[1][0]: a step is"));
  EXPECT_THAT(json_refusal(with("\"programs\": [", "\"programs\": [{\"lanes\": []}, ")),
              HasSubstr("2 programs for 1 ranks"));
  EXPECT_THAT(json_refusal(with("accord-plan", "other-plan")), HasSubstr("expected \"accord-plan\""));
  EXPECT_THAT(json_refusal(with("\"version\": 1", "\"version\": 2"), StatusCode::kUnsupported),
              HasSubstr("version 2; this build reads version 1"));
  EXPECT_THAT(json_refusal("[]"), HasSubstr("this is not a plan"));
  EXPECT_THAT(json_refusal(""), HasSubstr("plan JSON: "));
}

TEST(PlanJson, damaged_text_is_rejected_or_gives_another_plan_but_is_never_harmful) {
  std::mt19937 random(2);
  const std::string whole = to_json(whole_plan(Collective::kAllReduce, "two_shot", 2));
  for (int i = 0; i < 4000; ++i) {
    std::string text = whole;
    if (i % 3 == 0) text.resize(random() % text.size());
    if (!text.empty()) text[random() % text.size()] = static_cast<char>(random() % 256);
    const auto plan = plan_from_json(text);
    if (plan.ok()) (void)verify(*plan, Aliasing::kInPlace);
  }
}

}  // namespace
}  // namespace accord::plan
