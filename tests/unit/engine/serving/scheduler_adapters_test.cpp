// Sequences with adapters: their numbers in plans, and the blocks that they share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/serving/scheduler.hpp"

namespace accord::engine {
namespace {

using ::testing::HasSubstr;

Scheduler scheduler_with_adapters() {
  SchedulerOptions options;
  options.limits = {
      .blocks = 16, .block_tokens = 4, .max_context = 48, .vocabulary = 50, .max_sequences = 4, .max_rows = 32};
  options.limits.adapters = {"sql", "legal"};
  return Scheduler::create(options).value();
}

GenerationRequest request_with(const std::string& adapter) {
  GenerationRequest request;
  request.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  request.max_new_tokens = 1;
  request.adapter = adapter;
  return request;
}

TEST(SchedulerAdapters, equal_prompts_share_blocks_only_with_the_same_adapter) {
  Scheduler scheduler = scheduler_with_adapters();
  struct Case {
    std::string adapter;
    std::int32_t number;
    std::int32_t reused;
  };
  RequestId id = 0;
  for (const Case& one : {Case{"sql", 1, 0}, Case{"legal", 2, 0}, Case{"", 0, 0}, Case{"legal", 2, 8}, Case{"", 0, 8},
                          Case{"sql", 1, 8}}) {
    SCOPED_TRACE("request " + std::to_string(id));
    ASSERT_TRUE(scheduler.submit(id++, std::make_shared<const GenerationRequest>(request_with(one.adapter))).ok());
    StepPlan plan;
    ASSERT_TRUE(scheduler.plan_step(plan).ok());
    EXPECT_TRUE(check_plan(plan, scheduler.limits()).ok());
    ASSERT_EQ(plan.sequences.size(), 1U);
    EXPECT_EQ(plan.sequences[0].adapter, one.number);
    EXPECT_EQ(plan.sequences[0].context, one.reused);
    std::vector<GenerationEvent> events;
    ASSERT_TRUE(scheduler.complete_step(std::vector<SampledToken>{{1, 0, {}, {}}}, events).ok());
    EXPECT_TRUE(scheduler.check().ok());
  }
}

TEST(SchedulerAdapters, an_unknown_adapter_is_rejected_by_name) {
  Scheduler scheduler = scheduler_with_adapters();
  const Status status = scheduler.submit(1, std::make_shared<const GenerationRequest>(request_with("sq")));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("did you mean \"sql\""));
}

}  // namespace
}  // namespace accord::engine
