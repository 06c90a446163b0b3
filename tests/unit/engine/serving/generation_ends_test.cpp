// How a generation ends: by stop() at any moment, or by a failure of the model on any rank; and what its users see of
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "unit/engine/serving/ranks.hpp"

namespace accord::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::Property;
using testing::Ranks;
using testing::toy_answer;

constexpr PlanLimits kEndsLimits = {
    .blocks = 60, .block_tokens = 4, .max_context = 4000, .vocabulary = 32, .max_sequences = 8, .max_rows = 16};

GenerationRequest request_for(int max_new_tokens) {
  GenerationRequest request;
  request.prompt = {1, 2, 3, 4, 5};
  request.max_new_tokens = max_new_tokens;
  return request;
}

struct Collected {
  std::vector<TokenId> tokens;
  FinishReason reason = FinishReason::kError;
  Status status;
};

/// Collects everything from a request of one sample.
Collected drain(TokenStream& stream) {
  Collected collected;
  for (;;) {
    auto event = stream.next(20s);
    EXPECT_TRUE(event.ok()) << event.status().to_string();
    if (!event.ok() || !event->has_value()) return collected;
    if ((*event)->token) collected.tokens.push_back(*(*event)->token);
    if (!(*event)->finish) continue;
    collected.reason = *(*event)->finish;
    collected.status = (*event)->status;
  }
}

TEST(GenerationEnds, a_stream_returns_the_tokens_and_then_ends) {
  Ranks ranks(2, kEndsLimits);
  TokenStream stream = ranks.generation->submit(request_for(20)).value();
  const Collected collected = drain(stream);
  EXPECT_EQ(collected.tokens, toy_answer(request_for(20), 0, kEndsLimits));
  EXPECT_EQ(collected.reason, FinishReason::kLength);
  EXPECT_FALSE(stream.next(0s).value().has_value());
  EXPECT_EQ(ranks.generation->cancel(stream.id()).code(), StatusCode::kNotFound);
}

TEST(GenerationEnds, a_released_stream_cancels_its_request) {
  Ranks ranks(1, kEndsLimits);
  RequestId id = 0;
  {
    TokenStream stream = ranks.generation->submit(request_for(200)).value();
    id = stream.id();
    ASSERT_TRUE(stream.next(20s).value().has_value());
    EXPECT_EQ(ranks.generation->submit({}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(ranks.generation->submit(request_for(1), {}).status().code(), StatusCode::kInvalidArgument);
  }
  while (ranks.generation->cancel(id).ok()) std::this_thread::yield();
  EXPECT_TRUE(ranks.generation->status().ok());
}

TEST(GenerationEnds, a_stream_without_events_times_out) {
  Ranks ranks(1, kEndsLimits);
  std::atomic<bool> go = false;
  ranks.models[0]->before_run = [&](const StepPlan&) {
    go.wait(false);
    return Status();
  };
  TokenStream stream = ranks.generation->submit(request_for(2)).value();
  EXPECT_EQ(stream.next(1ms).status().code(), StatusCode::kTimeout);
  go = true;
  go.notify_all();
  EXPECT_EQ(drain(stream).tokens.size(), 2U);
}

TEST(GenerationEnds, stop_cancels_running_requests_and_notifies_all_ranks) {
  for (int round = 0; round < 20; ++round) {
    Ranks ranks(3, kEndsLimits);
    std::vector<TokenStream> streams;
    for (int i = 0; i < 12; ++i) streams.push_back(ranks.generation->submit(request_for(200)).value());
    if (round > 0) {
      ASSERT_TRUE(streams[0].next(20s).value().has_value());
    }
    for (const Status& status : ranks.end()) EXPECT_TRUE(status.ok()) << status.to_string();
    for (TokenStream& stream : streams) {
      const Collected collected = drain(stream);
      EXPECT_EQ(collected.reason, FinishReason::kCancelled);
      EXPECT_EQ(collected.status.code(), StatusCode::kClosed);
    }
    EXPECT_EQ(ranks.generation->submit(request_for(1)).status().code(), StatusCode::kClosed);
    EXPECT_EQ(ranks.generation->status().code(), StatusCode::kClosed);
    EXPECT_EQ(ranks.generation->stats().available_blocks, kEndsLimits.blocks);
    EXPECT_TRUE(ranks.generation->stop().ok());
  }
}

TEST(GenerationEnds, a_failure_of_the_model_fails_all_requests) {
  for (const std::size_t rank : {0U, 1U, 2U}) {
    Ranks ranks(3, kEndsLimits);
    ranks.models[rank]->before_run = [](const StepPlan& plan) {
      return plan.step < 7 ? Status() : Status(StatusCode::kPeerLost, "rank 5 died", {5});
    };
    std::vector<TokenStream> streams;
    for (int i = 0; i < 12; ++i) streams.push_back(ranks.generation->submit(request_for(200)).value());
    for (TokenStream& stream : streams) {
      const Collected collected = drain(stream);
      EXPECT_EQ(collected.reason, FinishReason::kError);
      EXPECT_EQ(collected.status.message(), "rank 5 died");
      EXPECT_EQ(collected.status.ranks(), std::vector<Rank>{5});
    }
    EXPECT_EQ(ranks.generation->submit(request_for(1)).status().code(), StatusCode::kPeerLost);
    for (const Status& status : ranks.end()) EXPECT_EQ(status.message(), "rank 5 died");
  }
}

TEST(GenerationEnds, a_row_of_nan_ends_only_its_request) {
  Ranks ranks(1, kEndsLimits);
  ranks.models[0]->spoiled = [](const StepPlan& plan) { return plan.tokens[0] == 31 && plan.positions[0] == 0; };
  GenerationRequest bad = request_for(4);
  bad.prompt = {31};
  TokenStream first = ranks.generation->submit(bad).value();
  const Collected collected = drain(first);
  EXPECT_EQ(collected.status.message(), "request 1, sample 0, token 0: the logit of token 9 is nan");
  TokenStream second = ranks.generation->submit(request_for(4)).value();
  EXPECT_EQ(drain(second).tokens.size(), 4U);
}

TEST(GenerationEnds, callbacks_may_submit_cancel_and_stop) {
  Ranks ranks(2, kEndsLimits);
  Generation& generation = *ranks.generation;
  std::atomic<int> ends = 0;
  RequestId second = 0;
  std::vector<Status> outcomes;
  const auto count = [&](const GenerationEvent& event) { ends += event.finish ? 1 : 0; };
  ASSERT_TRUE(generation
                  .submit(request_for(5),
                          [&](const GenerationEvent& event) {
                            count(event);
                            if (event.index == 0) second = generation.submit(request_for(150), count).value();
                            if (event.index == 2) outcomes.push_back(generation.cancel(second));
                            if (event.index == 4) outcomes.push_back(generation.stop());
                          })
                  .ok());
  while (generation.status().ok()) std::this_thread::yield();
  for (const Status& status : ranks.end()) EXPECT_TRUE(status.ok());
  EXPECT_EQ(ends, 2);
  EXPECT_THAT(outcomes, ElementsAre(Property(&Status::ok, true), Property(&Status::ok, true)));
}

TEST(GenerationEnds, many_threads_submit_and_cancel_during_a_stop) {
  for (int round = 0; round < 10; ++round) {
    Ranks ranks(2, kEndsLimits, {.max_requests = 50});
    std::atomic<int> submitted = 0;
    std::atomic<int> ended = 0;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&] {
        for (;;) {
          const auto id = ranks.generation->submit(
              request_for(10), [&](const GenerationEvent& event) { ended += event.finish ? 1 : 0; });
          if (id.status().code() == StatusCode::kClosed) return;
          if (!id.ok()) {
            std::this_thread::yield();
            continue;
          }
          ++submitted;
          if (*id % 3 == 0) (void)ranks.generation->cancel(*id).ok();
        }
      });
    }
    while (submitted < 50 * (round + 1)) std::this_thread::yield();
    for (const Status& status : ranks.end()) EXPECT_TRUE(status.ok());
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ended, submitted);
  }
}

TEST(GenerationEnds, idle_ranks_receive_heartbeats_from_rank_0) {
  Ranks ranks(2, kEndsLimits, {.heartbeat = 1ms});
  while (ranks.messages() < 5) std::this_thread::yield();
  EXPECT_EQ(ranks.models[1]->digest(), 0U);
  for (const Status& status : ranks.end()) EXPECT_TRUE(status.ok());
}

TEST(GenerationEnds, too_many_requests_are_rejected) {
  Ranks ranks(1, kEndsLimits, {.max_requests = 2});
  const auto ignore = [](const GenerationEvent&) {};
  ASSERT_TRUE(ranks.generation->submit(request_for(200), ignore).ok());
  ASSERT_TRUE(ranks.generation->submit(request_for(200), ignore).ok());
  EXPECT_EQ(ranks.generation->submit(request_for(200), ignore).status().code(), StatusCode::kResourceExhausted);
}

TEST(GenerationEnds, invalid_options_are_rejected) {
  const auto code = [](const PlanLimits& limits, const GenerationOptions& options) {
    return Generation::create(std::make_shared<testing::ToyModel>(limits), nullptr, options).status().code();
  };
  EXPECT_EQ(code(kEndsLimits, {.sampling_threads = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(kEndsLimits, {.heartbeat = 0s}), StatusCode::kInvalidArgument);
  PlanLimits limits = kEndsLimits;
  limits.max_rows = 1;
  EXPECT_EQ(code(limits, {}), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace accord::engine
