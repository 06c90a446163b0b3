// Caches and batches of all sizes, with and without reuse, with cancels between and within steps: every answer is
// right, nothing is lost, and everything ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>

#include "engine/serving/scheduler.hpp"
#include "unit/engine/serving/random_requests.hpp"

namespace accord::engine {
namespace {

using testing::Answer;
using testing::expect_correct;
using testing::random_request;
using testing::ToyModel;

SchedulerOptions random_options(std::mt19937& random) {
  SchedulerOptions options;
  PlanLimits& limits = options.limits;
  limits.max_context = 40;
  limits.vocabulary = 32;
  limits.block_tokens = 1 + static_cast<std::int32_t>(random() % 8);
  limits.blocks = 36 / limits.block_tokens + static_cast<std::int32_t>(random() % 40);
  limits.max_sequences = 1 + static_cast<std::int32_t>(random() % 9);
  limits.max_rows = limits.max_sequences + static_cast<std::int32_t>(random() % 20);
  options.prefix_reuse = random() % 3 == 0 ? PrefixReuse::kOff : PrefixReuse::kOn;
  options.aging_steps = static_cast<std::int32_t>(random() % 30);
  return options;
}

class Round {
 public:
  explicit Round(std::uint32_t seed)
      : random_(seed),
        options_(random_options(random_)),
        scheduler_(Scheduler::create(options_).value()),
        model_(options_.limits),
        sampler_(options_.limits.vocabulary) {}

  void run() {
    constexpr RequestId kRequests = 40;
    RequestId submitted = 0;
    for (int steps = 0; submitted < kRequests || scheduler_.stats().requests > 0; ++steps) {
      ASSERT_LT(steps, 20000) << "it does not end";
      while (submitted < kRequests && random_() % 2 == 0) submit(++submitted);
      maybe_cancel();
      ASSERT_TRUE(scheduler_.plan_step(plan_).ok());
      if (!plan_.empty()) compute();
      const Status status = scheduler_.check();
      ASSERT_TRUE(status.ok()) << status.to_string();
      for (const GenerationEvent& event : events_) ASSERT_NO_FATAL_FAILURE(answers_.at(event.request).add(event));
      events_.clear();
    }
    EXPECT_EQ(scheduler_.stats().available_blocks, options_.limits.blocks);
    for (const auto& [id, answer] : answers_) ASSERT_NO_FATAL_FAILURE(expect_correct(answer, options_.limits));
  }

 private:
  void submit(RequestId id) {
    const GenerationRequest request = random_request(random_);
    const Status status = scheduler_.submit(id, std::make_shared<const GenerationRequest>(request));
    if (status.ok()) {
      answers_.emplace(id, Answer(request));
    } else {
      ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
    }
  }
  void maybe_cancel() {
    if (!answers_.empty() && random_() % 16 == 0)
      (void)scheduler_.cancel(1 + random_() % answers_.rbegin()->first, events_).ok();
  }
  void compute() {
    const std::size_t wanted = plan_.logit_rows.size() * static_cast<std::size_t>(options_.limits.vocabulary);
    std::vector<float> logits(wanted);
    ASSERT_TRUE(model_.run(plan_).ok());
    ASSERT_TRUE(model_.read_logits(0, logits).ok());
    maybe_cancel();
    std::vector<SampledToken> sampled(scheduler_.draws().size());
    for (std::size_t i = 0; i < sampled.size(); ++i) {
      const DrawInput input = scheduler_.draw_input(i);
      const std::size_t first = static_cast<std::size_t>(scheduler_.draws()[i].logits) * 32;
      if (input.request != nullptr) sampled[i] = sampler_.sample(std::span(logits).subspan(first, 32), input);
    }
    ASSERT_TRUE(scheduler_.complete_step(sampled, events_).ok());
  }

  std::mt19937 random_;
  SchedulerOptions options_;
  Scheduler scheduler_;
  ToyModel model_;
  Sampler sampler_;
  StepPlan plan_;
  std::vector<GenerationEvent> events_;
  std::map<RequestId, Answer> answers_;
};

TEST(SchedulerRandom, every_cache_and_batch_gives_the_same_answers) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    Round(seed).run();
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace accord::engine
