// Masks are announced before the step that needs them, also for sequences that are preempted and computed again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <vector>

#include "unit/engine/serving/ranks.hpp"

namespace accord::engine {
namespace {

constexpr PlanLimits kFewBlocks = {
    .blocks = 12, .block_tokens = 4, .max_context = 40, .vocabulary = 70, .max_sequences = 5, .max_rows = 12};

// Allows every third token, and another third after each token.
class EveryThird final : public TokenMask {
 public:
  explicit EveryThird(const std::atomic<std::uint64_t>& runs) : runs_(runs) {}
  void prepare(int sample, std::span<const TokenId> generated) const override {
    const std::lock_guard lock(mutex_);
    announced_[sample] = {{generated.begin(), generated.end()}, runs_};
  }
  Status restrict(int sample, std::span<const TokenId> generated, std::span<std::uint64_t> allowed) const override {
    const std::lock_guard lock(mutex_);
    const auto& [tokens, runs] = announced_[sample];
    if (!std::ranges::equal(tokens, generated) || runs != runs_ - 1)
      return Status(StatusCode::kInternal, "this call was not announced before the step");
    for (std::size_t token = 0; token < allowed.size() * 64; ++token)
      if (token % 3 != generated.size() % 3) allowed[token / 64] &= ~(std::uint64_t{1} << (token % 64));
    return Status();
  }

 private:
  const std::atomic<std::uint64_t>& runs_;
  mutable std::mutex mutex_;
  mutable std::map<int, std::pair<std::vector<TokenId>, std::uint64_t>> announced_;
};

TEST(Generation, announces_masks_before_the_step) {
  testing::Ranks ranks(2, kFewBlocks, {.sampling_threads = 2});
  std::atomic<std::uint64_t> runs = 0;
  ranks.models[0]->before_run = [&](const StepPlan&) {
    ++runs;
    return Status();
  };
  constexpr int kRequests = 6;
  constexpr int kTokens = 20;
  std::mutex mutex;
  std::map<std::pair<RequestId, int>, std::vector<TokenId>> answers;
  int open = 2 * kRequests;
  std::promise<void> all_ended;
  for (int i = 0; i < kRequests; ++i) {
    GenerationRequest request;
    request.prompt = {1, 2, 3, i};
    request.max_new_tokens = kTokens;
    request.samples = 2;
    request.sampling = {.temperature = 1, .mask = std::make_shared<EveryThird>(runs)};
    const auto id = ranks.generation->submit(request, [&](const GenerationEvent& event) {
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(event.status.ok()) << event.status.to_string();
      if (event.token) answers[{event.request, event.sample}].push_back(*event.token);
      if (event.finish && --open == 0) all_ended.set_value();
    });
    ASSERT_TRUE(id.ok()) << id.status().to_string();
  }
  all_ended.get_future().wait();
  EXPECT_EQ(answers.size(), 2 * kRequests);
  for (const auto& [key, tokens] : answers) {
    ASSERT_EQ(tokens.size(), kTokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(static_cast<std::size_t>(tokens[i]) % 3, i % 3);
  }
  EXPECT_GT(ranks.generation->stats().preemptions, 0U);
}

}  // namespace
}  // namespace accord::engine
