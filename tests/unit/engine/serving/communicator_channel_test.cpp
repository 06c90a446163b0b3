// Generation over communicators: short and long plans, and failures on either side.
#include "engine/serving/communicator_channel.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ranks/thread_ranks.hpp"
#include "unit/engine/serving/ranks.hpp"

namespace accord::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::ToyModel;

// Enough rows for messages of both kinds.
constexpr PlanLimits kChannelLimits = {
    .blocks = 300, .block_tokens = 4, .max_context = 1000, .vocabulary = 32, .max_sequences = 8, .max_rows = 600};

GenerationRequest channel_request(int prompt, int max_new_tokens) {
  GenerationRequest request;
  for (int i = 0; i < prompt; ++i) request.prompt.push_back(i % 32);
  request.max_new_tokens = max_new_tokens;
  return request;
}

TEST(CommunicatorChannel, answers_are_correct_and_all_ranks_compute_the_same) {
  std::vector<std::uint64_t> digests(3);
  accord::testing::run_thread_ranks(3, {}, [&](Communicator communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto model = std::make_shared<ToyModel>(kChannelLimits);
    const auto channel = std::make_shared<CommunicatorChannel>(communicator);
    if (rank == 0) {
      const auto generation = Generation::create(model, channel, {.heartbeat = 1ms}).value();
      for (const int prompt : {3, 500}) {
        const GenerationRequest request = channel_request(prompt, 30);
        TokenStream stream = generation->submit(request).value();
        std::vector<TokenId> tokens;
        for (auto event = stream.next(20s).value(); event.has_value(); event = stream.next(20s).value())
          tokens.push_back(*event->token);
        EXPECT_EQ(tokens, testing::toy_answer(request, 0, kChannelLimits));
      }
      EXPECT_TRUE(generation->stop().ok());
    } else {
      const Status status = follow(*model, *channel);
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    digests[rank] = model->digest();
  });
  EXPECT_NE(digests[0], 0U);
  EXPECT_EQ(digests, std::vector<std::uint64_t>(3, digests[0]));
}

TEST(CommunicatorChannel, a_failure_of_any_rank_reaches_all) {
  for (const Rank failing : {0, 1}) {
    accord::testing::run_thread_ranks(2, {}, [&](Communicator communicator) {
      const auto model = std::make_shared<ToyModel>(kChannelLimits);
      const auto channel = std::make_shared<CommunicatorChannel>(communicator);
      if (communicator.rank() == failing) {
        model->before_run = [](const StepPlan& plan) {
          return plan.step < 5 ? Status() : Status(StatusCode::kIo, "the weights were released");
        };
      }
      if (communicator.rank() != 0) {
        EXPECT_THAT(follow(*model, *channel).message(), HasSubstr("the weights were released"));
        return;
      }
      const auto generation = Generation::create(model, channel).value();
      TokenStream stream = generation->submit(channel_request(5, 900)).value();
      Status ended;
      for (auto event = stream.next(20s).value(); event.has_value(); event = stream.next(20s).value())
        ended = event->status;
      EXPECT_THAT(ended.message(), HasSubstr("the weights were released"));
    });
  }
}

TEST(CommunicatorChannel, an_invalid_length_is_rejected) {
  accord::testing::run_thread_ranks(2, {}, [&](Communicator communicator) {
    if (communicator.rank() == 0) {
      std::vector<std::uint64_t> packet(128, ~std::uint64_t{0});
      EXPECT_TRUE(communicator.broadcast({packet.data(), 1024, DType::kUInt8, {}}, 0).ok());
    } else {
      std::vector<std::byte> message;
      EXPECT_EQ(CommunicatorChannel(communicator).receive(message).code(), StatusCode::kCorrupt);
    }
  });
}

}  // namespace
}  // namespace accord::engine
