// Samples of earlier requests that later requests continue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "engine/serving/scheduler.hpp"

namespace accord::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr SchedulerOptions kResuming = {
    .limits = {
        .blocks = 16, .block_tokens = 4, .max_context = 48, .vocabulary = 50, .max_sequences = 4, .max_rows = 8}};

GenerationRequest resumed_request() {
  GenerationRequest request;
  request.prompt = {5, 6, 7, 8, 9, 10};
  request.max_new_tokens = 3;
  request.first_sample = 2;
  request.generated = 4;
  return request;
}

TEST(ResumedSample, continues_where_the_earlier_request_ended) {
  Scheduler scheduler = Scheduler::create(kResuming).value();
  ASSERT_TRUE(scheduler.submit(1, std::make_shared<const GenerationRequest>(resumed_request())).ok());
  StepPlan plan;
  Scheduler::Events events;
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(scheduler.plan_step(plan).ok());
    ASSERT_EQ(scheduler.draws().size(), 1U);
    EXPECT_EQ(scheduler.draws()[0].sample, 2);
    if (step == 0) {
      EXPECT_THAT(scheduler.draw_input(0).generated, ElementsAre(7, 8, 9, 10));
    }
    ASSERT_TRUE(scheduler.complete_step(std::vector<SampledToken>(1), events).ok());
  }
  ASSERT_EQ(events.size(), 3U);  // max_new_tokens does not count the earlier tokens
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(events[static_cast<std::size_t>(i)].sample, 2);
    EXPECT_EQ(events[static_cast<std::size_t>(i)].index, 4 + i);
  }
  EXPECT_EQ(events[2].finish, FinishReason::kLength);
}

TEST(ResumedSample, is_numbered_like_the_earlier_request_when_it_is_cancelled) {
  Scheduler scheduler = Scheduler::create(kResuming).value();
  GenerationRequest request = resumed_request();
  request.samples = 2;
  ASSERT_TRUE(scheduler.submit(1, std::make_shared<const GenerationRequest>(request)).ok());
  Scheduler::Events events;
  ASSERT_TRUE(scheduler.cancel(1, events).ok());
  ASSERT_EQ(events.size(), 2U);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(events[static_cast<std::size_t>(i)].sample, 2 + i);
    EXPECT_EQ(events[static_cast<std::size_t>(i)].index, 4);
  }
}

TEST(ResumedSample, must_be_within_its_prompt_and_the_samples_of_a_request) {
  Scheduler scheduler = Scheduler::create(kResuming).value();
  const auto complaint = [&](int first_sample, int generated) {
    GenerationRequest request = resumed_request();
    request.first_sample = first_sample;
    request.generated = generated;
    const Status status = scheduler.submit(1, std::make_shared<const GenerationRequest>(request));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(complaint(-1, 0), HasSubstr("first_sample=-1"));
  EXPECT_THAT(complaint(1024, 0), HasSubstr("first_sample=1024 and samples=1"));
  EXPECT_THAT(complaint(0, -1), HasSubstr("generated=-1"));
  EXPECT_THAT(complaint(0, 6), HasSubstr("generated=6; expected a number from 0 to 5"));
}

}  // namespace
}  // namespace accord::engine
