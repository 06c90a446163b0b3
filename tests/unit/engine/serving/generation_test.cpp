// The whole loop with a toy model: random requests on several ranks, compared with a reference that computes each
// request alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>

#include "unit/engine/serving/random_requests.hpp"
#include "unit/engine/serving/ranks.hpp"

namespace accord::engine {
namespace {

using testing::Answer;
using testing::expect_correct;
using testing::random_request;
using testing::Ranks;

constexpr PlanLimits kTiny = {
    .blocks = 14, .block_tokens = 4, .max_context = 40, .vocabulary = 32, .max_sequences = 5, .max_rows = 12};

TEST(Generation, ten_thousand_random_requests_match_separate_runs) {
  constexpr std::size_t kRequests = 10000;
  std::mt19937 random(77);
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Answer> answers(kRequests);  // indexed by id - 1
  std::size_t open = 0;
  Ranks ranks(3, kTiny, {.sampling_threads = 2});
  for (std::size_t i = 0; i < kRequests; ++i) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return open < 40; });
      ++open;
    }
    Answer& answer = answers[i];
    answer = Answer(random_request(random));
    const auto id = ranks.generation->submit(answer.request, [&](const GenerationEvent& event) {
      answer.add(event);
      if (!answer.complete()) return;
      const std::lock_guard lock(mutex);
      --open;
      changed.notify_one();
    });
    ASSERT_TRUE(id.ok()) << id.status().to_string();
    ASSERT_EQ(*id, i + 1);
    if (random() % 5 == 0) (void)ranks.generation->cancel(1 + i - random() % std::min<std::size_t>(i + 1, 40)).ok();
  }
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return open == 0; });
  }
  for (const Status& status : ranks.end()) EXPECT_TRUE(status.ok()) << status.to_string();
  std::size_t cancelled = 0;
  for (const Answer& answer : answers) {
    ASSERT_NO_FATAL_FAILURE(expect_correct(answer, kTiny));
    cancelled += answer.ends[0] == FinishReason::kCancelled ? 1 : 0;
  }
  const GenerationStats stats = ranks.generation->stats();
  EXPECT_EQ(stats.available_blocks, kTiny.blocks);
  EXPECT_EQ(stats.requests, 0);
  EXPECT_GT(stats.preemptions, 500U);
  EXPECT_GT(stats.reused_tokens, 10000U);
  EXPECT_GT(cancelled, 500U);
  EXPECT_EQ(ranks.models[1]->digest(), ranks.models[0]->digest());
  EXPECT_EQ(ranks.models[2]->digest(), ranks.models[0]->digest());
}

}  // namespace
}  // namespace accord::engine
