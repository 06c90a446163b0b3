// Expert parallelism on devices between processes: bit-identical to CPU ranks, and a killed rank is named.
#include "conformance/expert/device_exchange.hpp"

#include "conformance/expert/device_step.hpp"
#include "multiproc/comm/device_processes.hpp"

namespace accord {
namespace {

using ::testing::ElementsAre;
using testing::ExpertProblem;
using testing::ExpertStep;
using ::testing::HasSubstr;
using testing::kNamedTheDead;
using testing::OnDevice;

CommunicatorOptions within(Duration timeout) { return {.timeout = timeout}; }

class ExpertProcesses : public testing::DeviceProcesses {
 protected:
  void expect_bit_identical_to_the_cpu(const ExpertProblem& problem, unsigned seed) {
    on_ranks(static_cast<int>(problem.tokens.size()), within(std::chrono::seconds(60)),
             [&](Communicator& comm, const OnDevice& on) { testing::check_device_exchange(comm, on, problem, seed); });
  }
};

TEST_F(ExpertProcesses, forward_and_backward_calls_are_bit_identical_to_the_cpu) {
  expect_bit_identical_to_the_cpu({.tokens = {7, 3}, .experts = 6, .top_k = 3, .alignment = 4}, 2);
  expect_bit_identical_to_the_cpu({.tokens = {4, 0, 9}, .experts = 12, .top_k = 1, .ids = DType::kInt32}, 3);
  expect_bit_identical_to_the_cpu({.tokens = {6, 11, 0, 2}, .experts = 16, .top_k = 8, .alignment = 2}, 4);
}

TEST_F(ExpertProcesses, other_dtypes_replicas_and_more_choices_than_a_chunk_holds) {
  expect_bit_identical_to_the_cpu(
      {.tokens = {5, 4}, .experts = 8, .top_k = 4, .dtype = DType::kBFloat16, .result = DType::kBFloat16}, 5);
  expect_bit_identical_to_the_cpu(
      {.tokens = {5, 4}, .hidden = 144, .dtype = DType::kFloat8E4M3FN, .result = DType::kBFloat16, .scales = true}, 6);
  expect_bit_identical_to_the_cpu(
      {.tokens = {8, 5, 6}, .experts = 5, .top_k = 3, .placement = {{0, 3}, {0, 1, 2, 3}, {1, 3, 4}}}, 7);
  expect_bit_identical_to_the_cpu({.tokens = {90, 140}, .experts = 8, .top_k = 5, .hidden = 4, .alignment = 8}, 8);
}

TEST_F(ExpertProcesses, consecutive_steps_do_not_interfere) {
  on_ranks(4, within(std::chrono::seconds(60)), [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    for (int i = 0; i < 20; ++i) {
      step.all();
      if (i % 7 == 0) step.expect_sums(2 * (1.0F + static_cast<float>(comm.rank())));
    }
    step.expect_sums(2 * (1.0F + static_cast<float>(comm.rank())));
  });
}

TEST_F(ExpertProcesses, a_rank_killed_while_kernels_wait_for_it_is_named) {
  const auto exits = exits_of(4, within(std::chrono::seconds(30)), 2, [&](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    step.all();
    on.synchronize();
    if (comm.rank() == 2) {
      ++board_->ready;
      pause();
    }
    EXPECT_TRUE(step.prepare().ok());
    ++board_->ready;
    const int seen = judge(step.failure(), 2, on);
    EXPECT_EQ(step.handle.fetch(on.stream).code(), StatusCode::kAborted);
    EXPECT_FALSE(step.handle.prepared());
    return seen;
  });
  EXPECT_EQ(exits, (std::vector<int>{kNamedTheDead, kNamedTheDead, 128 + SIGKILL, kNamedTheDead}));
}

TEST_F(ExpertProcesses, a_rank_killed_during_many_steps_is_named) {
  const auto exits = exits_of(4, within(std::chrono::seconds(30)), 0, [&](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    for (int i = 0;; ++i) {
      for (const Status& status : {step.prepare(), step.dispatch(), step.combine()})
        if (!status.ok()) return judge(step.failure(), 0, on);
      on.synchronize();
      if (i == 5) ++board_->ready;
    }
  });
  EXPECT_EQ(exits, (std::vector<int>{128 + SIGKILL, kNamedTheDead, kNamedTheDead, kNamedTheDead}));
}

TEST_F(ExpertProcesses, a_missing_rank_is_named_by_a_timeout) {
  on_ranks(4, within(std::chrono::milliseconds(1500)), [&](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    step.all();
    on.synchronize();
    if (comm.rank() == 1) {
      EXPECT_TRUE(is_soon([&] { return board_->done.load() == 3; }));
      return;
    }
    EXPECT_TRUE(step.prepare().ok());
    const Status failure = step.failure();
    EXPECT_EQ(failure.code(), StatusCode::kTimeout) << failure.to_string();
    EXPECT_THAT(failure.ranks(), ElementsAre(1));
    EXPECT_THAT(failure.message(), HasSubstr("rank 1 did not arrive in time"));
    ++board_->done;
  });
}

}  // namespace
}  // namespace accord
