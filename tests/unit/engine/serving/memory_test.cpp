// In the steady state of decoding, a step's planning, packing, sampling and completion allocate no memory.
#include <gtest/gtest.h>

#include "counted_allocations.hpp"
#include "engine/serving/plan_message.hpp"
#include "engine/serving/sampler.hpp"
#include "engine/serving/scheduler.hpp"

namespace accord::engine {
namespace {

TEST(ServingMemory, a_decoding_step_allocates_nothing) {
  const PlanLimits limits = {
      .blocks = 400, .block_tokens = 16, .max_context = 1000, .vocabulary = 500, .max_sequences = 8, .max_rows = 64};
  Scheduler scheduler = Scheduler::create({.limits = limits}).value();
  auto request = std::make_shared<GenerationRequest>();
  request->prompt = {1, 2, 3, 4, 5, 6};
  request->sampling = {.temperature = 1, .top_k = 20, .top_p = 0.9F, .repetition_penalty = 1.1F};
  request->max_new_tokens = 600;
  Sampler sampler(limits.vocabulary);
  std::vector<float> logits(static_cast<std::size_t>(limits.vocabulary));
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 131 % 97) / 10;
  StepPlan plan;
  StepPlan received;
  std::vector<std::byte> message;
  std::vector<SampledToken> sampled;
  std::vector<GenerationEvent> events;
  const auto step = [&] {
    bool fine = scheduler.plan_step(plan).ok();
    write_message(PlanMessage::kStep, plan, message);
    fine = fine && read_message(message, limits, received).ok();
    sampled.resize(scheduler.draws().size());
    for (std::size_t i = 0; i < sampled.size(); ++i) sampled[i] = sampler.sample(logits, scheduler.draw_input(i));
    events.clear();
    return fine && scheduler.complete_step(sampled, events).ok();
  };
  RequestId id = 0;
  const auto generate = [&] {  // returns the allocations of all steps but the first two
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(scheduler.submit(++id, request).ok());
    EXPECT_TRUE(step() && step());
    const std::size_t before = allocations;
    while (scheduler.stats().requests > 0) EXPECT_TRUE(step());
    return allocations - before;
  };
  // The first round sets the lengths of tables, plans and messages.
  (void)generate();
  EXPECT_EQ(generate(), 0U);
  EXPECT_EQ(scheduler.stats().steps, 1200U);
}

}  // namespace
}  // namespace accord::engine
