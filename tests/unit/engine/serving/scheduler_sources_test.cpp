// Sequences with a source: its blocks, the step that computes it, samples that share it, and preemption.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "engine/serving/scheduler.hpp"

namespace accord::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr SchedulerOptions kWithSources = {.limits = {.blocks = 16,
                                                      .block_tokens = 4,
                                                      .max_context = 40,
                                                      .vocabulary = 50,
                                                      .max_sequences = 4,
                                                      .max_rows = 8,
                                                      .max_source = 30}};

/// A scheduler whose steps get token 1 for each draw, and whose requests have a source that names them.
class SourceDriver {
 public:
  explicit SourceDriver(const SchedulerOptions& options = kWithSources)
      : scheduler(Scheduler::create(options).value()) {}

  Status submit(RequestId id, std::int32_t source_rows, std::vector<TokenId> prompt, int max_new_tokens,
                int samples = 1, int priority = 0) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.source = {{DType::kUInt8, {1}, {static_cast<std::byte>(id)}}};
    request.max_new_tokens = max_new_tokens;
    request.samples = samples;
    request.priority = priority;
    return scheduler.submit(id, std::make_shared<const GenerationRequest>(std::move(request)), source_rows);
  }
  bool step() {
    EXPECT_TRUE(scheduler.plan_step(plan).ok());
    const Status fits = check_plan(plan, scheduler.limits());
    EXPECT_TRUE(fits.ok()) << fits.to_string();
    if (plan.empty()) return false;
    EXPECT_TRUE(
        scheduler.complete_step(std::vector<SampledToken>(scheduler.draws().size(), {1, 0, {}, {}}), events).ok());
    const Status status = scheduler.check();
    EXPECT_TRUE(status.ok()) << status.to_string();
    return true;
  }
  // The requests whose source the step computes.
  std::vector<int> new_sources() const {
    std::vector<int> ids;
    for (const NewSource& source : plan.sources) ids.push_back(static_cast<int>((*source.tensors)[0].data[0]));
    return ids;
  }
  std::vector<RequestId> ended() const {
    std::vector<RequestId> ids;
    for (const GenerationEvent& event : events)
      if (event.finish) ids.push_back(event.request);
    return ids;
  }

  Scheduler scheduler;
  StepPlan plan;
  std::vector<GenerationEvent> events;
};

TEST(SchedulerSources, are_computed_once_in_blocks_of_their_own) {
  SourceDriver driver;
  ASSERT_TRUE(driver.submit(1, 9, {5, 6}, 4).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.new_sources(), ElementsAre(1));
  ASSERT_EQ(driver.plan.sequences.size(), 1U);
  EXPECT_EQ(driver.plan.sequences[0].source_rows, 9);
  const auto table = driver.plan.source_table(driver.plan.sequences[0]);
  const std::vector<BlockId> source(table.begin(), table.end());
  EXPECT_EQ(source.size(), 3U);
  std::set<BlockId> all(driver.plan.blocks.begin(), driver.plan.blocks.end());
  EXPECT_EQ(all.size(), driver.plan.blocks.size());
  while (driver.step()) {
    EXPECT_TRUE(driver.plan.sources.empty());
    const auto later = driver.plan.source_table(driver.plan.sequences[0]);
    EXPECT_THAT(later, ::testing::ElementsAreArray(source));
  }
  EXPECT_THAT(driver.ended(), ElementsAre(1));
  EXPECT_EQ(driver.scheduler.stats().available_blocks, 16);
}

TEST(SchedulerSources, a_long_prompt_computes_its_source_in_its_first_step) {
  SourceDriver driver;
  ASSERT_TRUE(driver.submit(1, 5, std::vector<TokenId>(20, 7), 1).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.new_sources(), ElementsAre(1));
  ASSERT_TRUE(driver.step());
  EXPECT_TRUE(driver.plan.sources.empty());
  EXPECT_EQ(driver.plan.sequences[0].source_rows, 5);
}

TEST(SchedulerSources, a_step_computes_as_many_as_it_has_rows_or_a_longer_one) {
  SourceDriver driver;
  for (const auto& [id, rows] : {std::pair{1, 3}, {2, 4}, {3, 5}, {4, 12}})
    ASSERT_TRUE(driver.submit(static_cast<RequestId>(id), rows, {5}, 5).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.new_sources(), ElementsAre(1, 2));
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.new_sources(), ElementsAre(3));
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.new_sources(), ElementsAre(4));
}

TEST(SchedulerSources, samples_share_one) {
  SourceDriver driver;
  ASSERT_TRUE(driver.submit(1, 9, {5, 6}, 3, 3).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.step());
  EXPECT_TRUE(driver.plan.sources.empty());
  ASSERT_EQ(driver.plan.sequences.size(), 3U);
  const auto first = driver.plan.source_table(driver.plan.sequences[0]);
  for (const PlannedSequence& sequence : driver.plan.sequences)
    EXPECT_THAT(driver.plan.source_table(sequence), ::testing::ElementsAreArray(first));
  while (driver.step()) {
  }
  EXPECT_EQ(driver.scheduler.stats().available_blocks, 16);
}

TEST(SchedulerSources, equal_prompts_of_different_sources_share_no_blocks) {
  SourceDriver driver;
  const std::vector<TokenId> prompt(9, 3);
  ASSERT_TRUE(driver.submit(1, 2, prompt, 1).ok());
  while (driver.step()) {
  }
  ASSERT_TRUE(driver.submit(2, 2, prompt, 1).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.plan.sequences[0].context, 0);
  EXPECT_EQ(driver.scheduler.stats().reused_tokens, 0U);
}

TEST(SchedulerSources, a_preempted_sequence_computes_its_source_again) {
  SourceDriver driver;
  ASSERT_TRUE(driver.submit(1, 24, {5}, 10, 1, -1).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.submit(2, 30, {6}, 12, 1, 1).ok());  // needs 10 blocks, where 9 are left
  std::vector<int> computed;
  while (driver.step())
    for (const int id : driver.new_sources()) computed.push_back(id);
  EXPECT_EQ(driver.scheduler.stats().preemptions, 1U);
  EXPECT_THAT(computed, ElementsAre(2, 1));
  EXPECT_THAT(driver.ended(), ElementsAre(2, 1));
  EXPECT_EQ(driver.scheduler.stats().available_blocks, 16);
}

TEST(SchedulerSources, must_fit_the_encoder_and_the_cache) {
  SourceDriver driver;
  Status status = driver.submit(1, 31, {5}, 2);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("a source of 31 rows; the encoder makes at most 30"));
  status = driver.submit(1, 30, {5}, 33);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("33 tokens and a source of 30 rows can never fit"));
  EXPECT_TRUE(driver.submit(1, 30, {5}, 32).ok());
}

// Sources whose rows token 7 stands for.
SchedulerOptions with_slots() {
  SchedulerOptions options = kWithSources;
  options.limits.source_token = 7;
  return options;
}

TEST(SchedulerSources, are_in_a_slot_until_the_prompt_is_computed) {
  SourceDriver driver(with_slots());
  ASSERT_TRUE(driver.submit(1, 5, {1, 7, 7, 2, 7, 7, 7, 3, 4, 5}, 3).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.new_sources(), ElementsAre(1));
  const PlannedSequence first = driver.plan.sequences[0];
  EXPECT_EQ(first.rows, 8);  // max_rows
  EXPECT_EQ(first.source_rows, 5);
  EXPECT_EQ(first.source_slot, 0);
  EXPECT_EQ(first.first_source_row, 0);
  EXPECT_TRUE(driver.plan.source_table(first).empty());
  ASSERT_TRUE(driver.step());
  EXPECT_TRUE(driver.plan.sources.empty());
  EXPECT_EQ(driver.plan.sequences[0].source_slot, 0);
  EXPECT_EQ(driver.plan.sequences[0].first_source_row, 5);
  ASSERT_TRUE(driver.step());  // the first token of the answer
  EXPECT_EQ(driver.plan.sequences[0].source_rows, 0);
  EXPECT_EQ(driver.plan.sequences[0].source_slot, PlannedSequence::kNoSlot);
}

TEST(SchedulerSources, a_chunk_continues_at_the_row_after_the_last_one) {
  SourceDriver driver(with_slots());
  ASSERT_TRUE(driver.submit(1, 9, {7, 7, 7, 7, 7, 2, 3, 7, 7, 7, 7, 4}, 1).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.plan.sequences[0].context, 8);
  EXPECT_EQ(driver.plan.sequences[0].first_source_row, 6);
}

TEST(SchedulerSources, slots_differ_and_are_used_again) {
  SourceDriver driver(with_slots());
  ASSERT_TRUE(driver.submit(1, 2, {7, 7, 1}, 1).ok());
  ASSERT_TRUE(driver.submit(2, 0, {5}, 4).ok());
  ASSERT_TRUE(driver.submit(3, 1, {7, 1}, 1).ok());
  ASSERT_TRUE(driver.step());
  std::vector<std::int32_t> slots;
  for (const PlannedSequence& sequence : driver.plan.sequences) slots.push_back(sequence.source_slot);
  EXPECT_THAT(slots, ElementsAre(PlannedSequence::kNoSlot, 0, 1));
  ASSERT_TRUE(driver.submit(4, 1, {7, 2}, 1).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.new_sources(), ElementsAre(4));
  EXPECT_EQ(driver.plan.sequences.back().source_slot, 0);
}

TEST(SchedulerSources, a_prompt_has_a_token_for_each_row) {
  SourceDriver driver(with_slots());
  EXPECT_THAT(driver.submit(1, 2, {7, 1}, 1).message(),
              HasSubstr("token 7, which stands for a row of the source, 1 times"));
  EXPECT_THAT(driver.submit(1, 0, {7, 1}, 1).message(), HasSubstr("the source has 0 rows"));
  EXPECT_TRUE(driver.submit(1, 0, {1}, 1).ok());
}

}  // namespace
}  // namespace accord::engine
