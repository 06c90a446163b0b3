// Which sequences compute what in a step: order, chunks, preemption, cancels, ends, errors.
#include "engine/serving/scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <numeric>
#include <set>

namespace accord::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr SchedulerOptions kSmall = {
    .limits = {
        .blocks = 16, .block_tokens = 4, .max_context = 48, .vocabulary = 50, .max_sequences = 4, .max_rows = 8}};

GenerationRequest request_of(std::size_t prompt, int max_new_tokens, int priority = 0) {
  GenerationRequest request;
  request.prompt.resize(prompt);
  std::iota(request.prompt.begin(), request.prompt.end(), static_cast<TokenId>(prompt));
  for (TokenId& token : request.prompt) token %= 50;
  request.max_new_tokens = max_new_tokens;
  request.priority = priority;
  return request;
}

/// A scheduler whose steps get token (index of the draw + 1) for each draw, and a record of the results.
class Driver {
 public:
  explicit Driver(const SchedulerOptions& options = kSmall) : scheduler(Scheduler::create(options).value()) {}

  Status submit(RequestId id, GenerationRequest request) {
    return scheduler.submit(id, std::make_shared<const GenerationRequest>(std::move(request)));
  }
  /// Returns false if there was nothing to do.
  bool step() {
    EXPECT_TRUE(scheduler.plan_step(plan).ok());
    const Status fits = check_plan(plan, scheduler.limits());
    EXPECT_TRUE(fits.ok()) << fits.to_string();
    if (plan.empty()) return false;
    std::vector<SampledToken> sampled;
    for (std::size_t i = 0; i < scheduler.draws().size(); ++i) {
      drawn.push_back(scheduler.draws()[i].request);
      sampled.push_back({static_cast<TokenId>(i) + 1, 0, {}, {}});
    }
    EXPECT_TRUE(scheduler.complete_step(sampled, events).ok());
    const Status status = scheduler.check();
    EXPECT_TRUE(status.ok()) << status.to_string();
    return true;
  }
  std::vector<std::int32_t> rows() const {
    std::vector<std::int32_t> rows;
    for (const PlannedSequence& sequence : plan.sequences) rows.push_back(sequence.rows);
    return rows;
  }
  std::vector<RequestId> ended() const {
    std::vector<RequestId> ids;
    for (const GenerationEvent& event : events)
      if (event.finish) ids.push_back(event.request);
    return ids;
  }

  bool has_ended(RequestId id) const { return std::ranges::count(ended(), id) > 0; }

  Scheduler scheduler;
  StepPlan plan;
  std::vector<GenerationEvent> events;
  std::vector<RequestId> drawn;  // the request of each token so far
};

TEST(Scheduler, prompts_are_processed_in_chunks_together_with_decoding_sequences) {
  Driver driver;
  ASSERT_TRUE(driver.submit(1, request_of(3, 5)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.rows(), ElementsAre(3));
  ASSERT_TRUE(driver.submit(2, request_of(18, 2)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.rows(), ElementsAre(1, 7));
  EXPECT_THAT(driver.plan.logit_rows, ElementsAre(0));
  EXPECT_THAT(driver.plan.positions, ElementsAre(3, 0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(driver.plan.tokens, ElementsAre(1, 18, 19, 20, 21, 22, 23, 24));
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.rows(), ElementsAre(1, 7));
  EXPECT_EQ(driver.plan.sequences[1].context, 7);
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.rows(), ElementsAre(1, 4));
  EXPECT_THAT(driver.plan.logit_rows, ElementsAre(0, 4));
  while (driver.step()) {
  }
  EXPECT_THAT(driver.ended(), ElementsAre(1, 2));
  EXPECT_EQ(driver.scheduler.stats().available_blocks, 16);
}

TEST(Scheduler, invalid_calls_are_named) {
  Driver driver;
  const auto complaint = [&](auto change, StatusCode code = StatusCode::kInvalidArgument) {
    GenerationRequest request = request_of(3, 4);
    change(request);
    const Status status = driver.submit(1, request);
    EXPECT_EQ(status.code(), code) << status.to_string();
    return status.message();
  };
  using Request = GenerationRequest;
  const float nan = std::nanf("");
  EXPECT_THAT(complaint([](Request& r) { r.prompt.clear(); }), HasSubstr("prompt is empty"));
  EXPECT_THAT(complaint([](Request& r) { r.prompt.resize(48); }), HasSubstr("context of 48"));
  EXPECT_THAT(complaint([](Request& r) { r.prompt.resize(45); }), HasSubstr("exceed the context of 48"));
  EXPECT_THAT(complaint([](Request& r) { r.prompt[1] = 50; }), HasSubstr("token 50 at position 1 is outside the voc"));
  EXPECT_THAT(complaint([](Request& r) { r.prompt[2] = -1; }), HasSubstr("token -1 at position 2"));
  EXPECT_THAT(complaint([](Request& r) { r.max_new_tokens = 0; }), HasSubstr("max_new_tokens=0"));
  EXPECT_THAT(complaint([&](Request& r) { r.sampling.temperature = nan; }), HasSubstr("temperature=nan"));
  EXPECT_THAT(complaint([](Request& r) { r.sampling.temperature = -1; }), HasSubstr("temperature=-1"));
  EXPECT_THAT(complaint([](Request& r) { r.sampling.temperature = 1e-30F; }), HasSubstr("temperature=1e-30"));
  EXPECT_THAT(complaint([](Request& r) { r.sampling.top_k = -1; }), HasSubstr("top_k=-1"));
  EXPECT_THAT(complaint([](Request& r) { r.sampling.top_p = 1.5F; }), HasSubstr("top_p=1.5"));
  EXPECT_THAT(complaint([&](Request& r) { r.sampling.min_p = nan; }), HasSubstr("min_p=nan"));
  EXPECT_THAT(complaint([](Request& r) { r.sampling.repetition_penalty = 0; }), HasSubstr("repetition_penalty=0"));
  EXPECT_THAT(complaint([&](Request& r) { r.sampling.presence_penalty = nan; }), HasSubstr("presence_penalty=nan"));
  EXPECT_THAT(complaint([&](Request& r) { r.sampling.frequency_penalty = nan; }), HasSubstr("frequency_penalty=nan"));
  EXPECT_THAT(complaint([&](Request& r) { r.sampling.biases = {{1, nan}}; }), HasSubstr("nan for token 1"));
  EXPECT_THAT(complaint([](Request& r) { r.sampling.biases = {{50, 1}}; }), HasSubstr("biases: token 50"));
  EXPECT_THAT(complaint([](Request& r) { r.sampling.biases = {{3, 1}, {3, 2}}; }), HasSubstr("token 3 appears twice"));
  EXPECT_THAT(complaint([](Request& r) { r.stop_tokens = {99}; }), HasSubstr("stop_tokens: token 99"));
  EXPECT_THAT(complaint([](Request& r) { r.stop_sequences = {{1}, {}}; }), HasSubstr("one of them is empty"));
  EXPECT_THAT(complaint([](Request& r) { r.priority = 101; }), HasSubstr("priority=101"));
  EXPECT_THAT(complaint([](Request& r) { r.samples = 0; }), HasSubstr("samples=0"));
  EXPECT_THAT(complaint([](Request& r) { r.logprobs = 51; }), HasSubstr("logprobs=51"));
  EXPECT_EQ(driver.scheduler.stats().requests, 0);

  SchedulerOptions tiny = kSmall;
  tiny.limits.blocks = 2;
  tiny.max_requests = 1;
  Driver full(tiny);
  Status status = full.submit(1, request_of(5, 5));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("9 tokens can never fit into the cache of 2 blocks"));
  EXPECT_TRUE(full.submit(1, request_of(5, 4)).ok());
  EXPECT_EQ(full.submit(2, request_of(5, 4)).code(), StatusCode::kResourceExhausted);
  status = full.submit(1, request_of(5, 4));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("request 1 was submitted after request 1"));
  EXPECT_EQ(full.scheduler.cancel(7, full.events).code(), StatusCode::kNotFound);
}

TEST(Scheduler, invalid_sizes_are_rejected) {
  const auto code = [](auto change) {
    SchedulerOptions options = kSmall;
    change(options);
    return Scheduler::create(options).status().code();
  };
  EXPECT_EQ(code([](SchedulerOptions&) {}), StatusCode::kOk);
  EXPECT_EQ(code([](SchedulerOptions& o) { o.limits.blocks = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SchedulerOptions& o) { o.limits.max_context = 1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SchedulerOptions& o) { o.limits.vocabulary = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SchedulerOptions& o) { o.limits.max_rows = 3; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SchedulerOptions& o) { o.max_requests = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](SchedulerOptions& o) { o.aging_steps = -1; }), StatusCode::kInvalidArgument);
}

TEST(Scheduler, plan_and_complete_alternate) {
  Driver driver;
  EXPECT_EQ(driver.scheduler.complete_step({}, driver.events).code(), StatusCode::kWrongState);
  ASSERT_TRUE(driver.scheduler.plan_step(driver.plan).ok());
  EXPECT_TRUE(driver.plan.empty());
  ASSERT_TRUE(driver.submit(1, request_of(3, 4)).ok());
  ASSERT_TRUE(driver.scheduler.plan_step(driver.plan).ok());
  EXPECT_EQ(driver.scheduler.plan_step(driver.plan).code(), StatusCode::kWrongState);
  EXPECT_EQ(driver.scheduler.complete_step({}, driver.events).code(), StatusCode::kInvalidArgument);
  std::vector<SampledToken> sampled(1);
  sampled[0].token = 50;
  EXPECT_EQ(driver.scheduler.complete_step(sampled, driver.events).code(), StatusCode::kInvalidArgument);
  sampled[0].token = 49;
  EXPECT_TRUE(driver.scheduler.complete_step(sampled, driver.events).ok());
  ASSERT_EQ(driver.events.size(), 1U);
  EXPECT_EQ(driver.events[0].token, 49);
}

TEST(Scheduler, a_sample_ends_by_token_sequence_or_length) {
  Driver driver;
  GenerationRequest request = request_of(3, 6);
  request.stop_tokens = {1};
  ASSERT_TRUE(driver.submit(1, request).ok());
  request = request_of(4, 6);
  request.stop_sequences = {{9, 2}, {2, 2, 2}};
  ASSERT_TRUE(driver.submit(2, request).ok());
  request = request_of(5, 2);
  request.max_new_tokens.reset();  // the context holds 48
  ASSERT_TRUE(driver.submit(3, request).ok());
  std::vector<SampledToken> sampled;
  while (driver.scheduler.plan_step(driver.plan).ok() && !driver.plan.empty()) {
    sampled.clear();
    for (const Draw& draw : driver.scheduler.draws())
      sampled.push_back({static_cast<TokenId>(draw.request), 0, {}, {}});
    ASSERT_TRUE(driver.scheduler.complete_step(sampled, driver.events).ok());
  }
  std::map<RequestId, std::pair<FinishReason, int>> ends;
  for (const GenerationEvent& event : driver.events)
    if (event.finish) ends[event.request] = {*event.finish, event.index + 1};
  EXPECT_EQ(ends[1], (std::pair{FinishReason::kStopToken, 1}));
  EXPECT_EQ(ends[2], (std::pair{FinishReason::kStopSequence, 3}));
  EXPECT_EQ(ends[3], (std::pair{FinishReason::kLength, 43}));
}

TEST(Scheduler, a_draw_without_a_token_ends_its_sample_and_names_it) {
  Driver driver;
  ASSERT_TRUE(driver.submit(5, request_of(3, 4)).ok());
  ASSERT_TRUE(driver.submit(6, request_of(3, 4)).ok());
  ASSERT_TRUE(driver.scheduler.plan_step(driver.plan).ok());
  std::vector<SampledToken> sampled(2);
  sampled[0].status = Status(StatusCode::kCorrupt, "the logit of token 3 is nan");
  ASSERT_TRUE(driver.scheduler.complete_step(sampled, driver.events).ok());
  ASSERT_EQ(driver.events.size(), 2U);
  EXPECT_EQ(driver.events[0].finish, FinishReason::kError);
  EXPECT_EQ(driver.events[0].status.message(), "request 5, sample 0, token 0: the logit of token 3 is nan");
  EXPECT_FALSE(driver.events[1].finish.has_value());
  EXPECT_EQ(driver.scheduler.stats().requests, 1);
}

TEST(Scheduler, a_request_may_be_cancelled_at_any_time) {
  Driver driver;
  GenerationRequest request = request_of(6, 9);
  request.samples = 3;
  for (RequestId id = 1; id <= 3; ++id) ASSERT_TRUE(driver.submit(id, request).ok());
  ASSERT_TRUE(driver.scheduler.cancel(3, driver.events).ok());  // before its first step
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.scheduler.plan_step(driver.plan).ok());
  const std::size_t draws = driver.scheduler.draws().size();
  driver.events.clear();
  ASSERT_TRUE(driver.scheduler.cancel(1, driver.events).ok());  // while a step is in progress
  ASSERT_EQ(driver.events.size(), 3U);
  for (int sample = 0; sample < 3; ++sample) {
    const GenerationEvent& event = driver.events[static_cast<std::size_t>(sample)];
    EXPECT_EQ(event.sample, sample);
    EXPECT_EQ(event.index, 1);
    EXPECT_EQ(event.finish, FinishReason::kCancelled);
  }
  EXPECT_EQ(driver.scheduler.cancel(1, driver.events).code(), StatusCode::kNotFound);
  EXPECT_EQ(driver.scheduler.draw_input(0).request, nullptr);
  ASSERT_TRUE(driver.scheduler.complete_step(std::vector<SampledToken>(draws), driver.events).ok());
  EXPECT_TRUE(driver.scheduler.check().ok());
  ASSERT_TRUE(driver.scheduler.cancel(2, driver.events).ok());
  EXPECT_EQ(driver.scheduler.stats().requests, 0);
  EXPECT_EQ(driver.scheduler.stats().available_blocks, 16);
  EXPECT_FALSE(driver.step());
}

TEST(Scheduler, samples_share_the_prompt_and_copy_its_last_block_when_they_write_to_it) {
  Driver driver;
  GenerationRequest request = request_of(6, 4);
  request.samples = 3;
  ASSERT_TRUE(driver.submit(1, request).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.events.size(), 3U);
  EXPECT_EQ(driver.scheduler.stats().available_blocks, 14);
  ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.plan.copies.size(), 2U);  // the last holder writes into the original
  EXPECT_THAT(driver.rows(), ElementsAre(1, 1, 1));
  EXPECT_EQ(driver.scheduler.stats().available_blocks, 12);
  std::set<BlockId> last_blocks;
  for (const PlannedSequence& sequence : driver.plan.sequences) {
    EXPECT_EQ(driver.plan.table(sequence)[0], driver.plan.table(driver.plan.sequences[0])[0]);
    last_blocks.insert(driver.plan.table(sequence)[1]);
  }
  EXPECT_EQ(last_blocks.size(), 3U);
  while (driver.step()) {
  }
  EXPECT_EQ(driver.ended().size(), 3U);
}

TEST(Scheduler, shared_prefixes_are_computed_once) {
  Driver driver;
  ASSERT_TRUE(driver.submit(1, request_of(12, 2)).ok());
  while (driver.step()) {
  }
  EXPECT_EQ(driver.scheduler.stats().computed_tokens, 13U);
  ASSERT_TRUE(driver.submit(2, request_of(12, 1)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.rows(), ElementsAre(4));  // the last token's block is computed again, for its logits
  EXPECT_EQ(driver.plan.sequences[0].context, 8);
  EXPECT_EQ(driver.scheduler.stats().reused_tokens, 8U);

  SchedulerOptions without = kSmall;
  without.prefix_reuse = PrefixReuse::kOff;
  Driver other(without);
  for (RequestId id = 1; id <= 2; ++id) {
    ASSERT_TRUE(other.submit(id, request_of(12, 2)).ok());
    while (other.step()) {
    }
  }
  EXPECT_EQ(other.scheduler.stats().computed_tokens, 26U);
}

TEST(Scheduler, when_blocks_run_out_the_youngest_request_of_the_lowest_priority_waits) {
  SchedulerOptions options = kSmall;
  options.limits.blocks = 6;
  options.prefix_reuse = PrefixReuse::kOff;
  Driver driver(options);
  ASSERT_TRUE(driver.submit(1, request_of(2, 10, 0)).ok());
  ASSERT_TRUE(driver.submit(2, request_of(2, 10, 1)).ok());
  ASSERT_TRUE(driver.submit(3, request_of(2, 10, 0)).ok());
  while (driver.scheduler.stats().preemptions == 0) ASSERT_TRUE(driver.step());
  // Three sequences have two blocks each, and one needs a third.
  EXPECT_EQ(driver.scheduler.stats().running, 2);
  EXPECT_EQ(std::ranges::count(driver.drawn, RequestId{3}), 7);
  while (driver.step()) {
  }
  EXPECT_THAT(driver.ended(), ElementsAre(2, 1, 3));
  for (RequestId id = 1; id <= 3; ++id) EXPECT_EQ(std::ranges::count(driver.drawn, id), 10);
}

TEST(Scheduler, an_urgent_request_preempts_a_less_urgent_one) {
  SchedulerOptions options = kSmall;
  options.limits.max_sequences = 2;
  Driver driver(options);
  ASSERT_TRUE(driver.submit(1, request_of(3, 20, 0)).ok());
  ASSERT_TRUE(driver.submit(2, request_of(3, 20, -1)).ok());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.submit(3, request_of(3, 3, 5)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.drawn.back(), 3U);
  EXPECT_EQ(driver.scheduler.stats().preemptions, 1U);
  while (driver.step()) {
  }
  EXPECT_THAT(driver.ended(), ElementsAre(3, 1, 2));
}

TEST(Scheduler, an_urgent_request_that_would_not_fit_preempts_nothing) {
  SchedulerOptions options = kSmall;
  options.limits.blocks = 8;
  Driver driver(options);
  ASSERT_TRUE(driver.submit(1, request_of(16, 4, 9)).ok());  // four of eight blocks, and five later
  ASSERT_TRUE(driver.submit(2, request_of(2, 3, 0)).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.scheduler.stats().running, 2);
  ASSERT_TRUE(driver.submit(3, request_of(20, 2, 5)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.scheduler.stats().preemptions, 0U);
  while (driver.step()) {
  }
  EXPECT_EQ(driver.ended().size(), 3U);
}

// Without aging, the first request would wait forever: a new one of higher priority arrives in every step.
TEST(Scheduler, no_request_starves_behind_an_endless_stream_of_higher_priority) {
  SchedulerOptions options = kSmall;
  options.limits.max_sequences = 1;
  options.aging_steps = 50;
  Driver driver(options);
  ASSERT_TRUE(driver.submit(1, request_of(4, 4, -1)).ok());
  RequestId id = 1;
  int steps = 0;
  while (!driver.has_ended(1)) {
    ASSERT_TRUE(driver.submit(++id, request_of(3, 2, 1)).ok());
    ASSERT_TRUE(driver.step());
    ASSERT_LT(++steps, 400);
  }
  // Two levels of 50 steps: about 100 others are scheduled first, of two steps each.
  EXPECT_GT(steps, 190);
}

TEST(Scheduler, a_large_request_is_not_overtaken_indefinitely_by_small_ones) {
  SchedulerOptions options = kSmall;
  options.limits.blocks = 8;
  options.prefix_reuse = PrefixReuse::kOff;
  Driver driver(options);
  ASSERT_TRUE(driver.submit(1, request_of(4, 6)).ok());
  ASSERT_TRUE(driver.submit(2, request_of(30, 3)).ok());  // needs all blocks
  RequestId id = 2;
  for (int steps = 0; !driver.has_ended(2); ++steps) {
    ASSERT_TRUE(driver.submit(++id, request_of(2, 3)).ok());
    ASSERT_TRUE(driver.step());
    ASSERT_LT(steps, 40);
  }
  EXPECT_THAT(driver.ended(), ElementsAre(1, 2));
}

TEST(Scheduler, all_requests_can_be_ended_at_any_point_of_a_step) {
  Driver driver;
  GenerationRequest request = request_of(6, 9);
  request.samples = 2;
  for (RequestId id = 1; id <= 4; ++id) ASSERT_TRUE(driver.submit(id, request).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.scheduler.plan_step(driver.plan).ok());
  driver.events.clear();
  driver.scheduler.end_all(FinishReason::kError, Status(StatusCode::kPeerLost, "rank 1 died"), driver.events);
  EXPECT_EQ(driver.events.size(), 8U);
  for (const GenerationEvent& event : driver.events) EXPECT_EQ(event.status.message(), "rank 1 died");
  EXPECT_EQ(driver.scheduler.stats().available_blocks, 16);
  EXPECT_TRUE(driver.scheduler.check().ok());
  ASSERT_TRUE(driver.submit(9, request).ok());
  EXPECT_TRUE(driver.step());
}

}  // namespace
}  // namespace accord::engine
