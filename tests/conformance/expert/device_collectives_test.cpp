// Rows of ranks that do not all reach each other's memory travel in collectives of the communicator. Results are
// bit-identical to the CPU's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <optional>

#include "conformance/expert/device_exchange.hpp"
#include "conformance/expert/device_overflow.hpp"
#include "conformance/expert/device_step.hpp"
#include "device/nccl_control.hpp"
#include "sanitized.hpp"

namespace accord {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::ExpertProblem;
using testing::ExpertStep;
using ::testing::HasSubstr;
using testing::kSanitized;
using ::testing::Not;
using testing::OnDevice;
using testing::OverflowProblem;

// Set before anything reads the environment.
const bool kChosen = setenv("ACCORD_NCCL", testing::library_path().c_str(), 1) == 0;

/// Over UCX, each rank counts as a host of its own.
CommunicatorOptions on_hosts(Duration timeout = std::chrono::seconds(60)) {
  return {.timeout = timeout, .transport = "ucx"};
}

class ExpertCollectives : public testing::HostDevices {
 protected:
  void SetUp() override { ASSERT_TRUE(kChosen); }
  static void expect_bit_identical_to_the_cpu(ExpertProblem problem, unsigned seed) {
    problem.algorithm = ExpertAlgorithm::kAllToAll;
    on_ranks(static_cast<int>(problem.tokens.size()),
             [&](Communicator& comm, const OnDevice& on) { testing::check_device_exchange(comm, on, problem, seed); });
  }
  static void expect_the_same_choices(OverflowProblem problem, unsigned seed) {
    problem.algorithm = ExpertAlgorithm::kAllToAll;
    on_ranks(static_cast<int>(problem.tokens.size()),
             [&](Communicator& comm, const OnDevice& on) { testing::check_device_overflow(comm, on, problem, seed); });
  }
  static ExpertGroupConfig small_config(const OnDevice& on) {
    ExpertGroupConfig config = testing::small_expert_config(on);
    config.algorithm = ExpertAlgorithm::kAllToAll;
    return config;
  }
};

TEST_F(ExpertCollectives, any_number_of_ranks_and_choices) {
  expect_bit_identical_to_the_cpu({.tokens = {5}}, 1);
  expect_bit_identical_to_the_cpu({.tokens = {7, 3}, .experts = 6, .top_k = 3, .alignment = 4}, 2);
  expect_bit_identical_to_the_cpu({.tokens = {4, 0, 9}, .experts = 12, .top_k = 1, .ids = DType::kInt32}, 3);
  expect_bit_identical_to_the_cpu({.tokens = {6, 11, 0, 2}, .experts = 16, .top_k = 8, .alignment = 2}, 4);
  expect_bit_identical_to_the_cpu({.tokens = {0, 0}}, 5);
  expect_bit_identical_to_the_cpu({.tokens = {90, 140}, .experts = 8, .top_k = 5, .hidden = 4, .alignment = 8}, 6);
}

TEST_F(ExpertCollectives, every_dtype_and_width) {
  const ExpertProblem problems[] = {
      {.tokens = {5, 4}, .hidden = 6, .dtype = DType::kFloat64, .result = DType::kFloat64, .weights = DType::kFloat64},
      {.tokens = {5, 4}, .hidden = 3, .dtype = DType::kFloat32, .result = DType::kBFloat16},
      {.tokens = {5, 4}, .hidden = 16, .dtype = DType::kFloat32, .result = DType::kFloat16, .weights = DType::kFloat64},
      {.tokens = {5, 4}, .hidden = 7, .dtype = DType::kFloat16, .result = DType::kFloat32},
      {.tokens = {5, 4}, .hidden = 9, .dtype = DType::kBFloat16, .result = DType::kBFloat16},
      {.tokens = {5, 4}, .hidden = 150, .dtype = DType::kFloat8E4M3FN, .result = DType::kFloat32, .scales = true},
      {.tokens = {5, 4}, .hidden = 32, .dtype = DType::kFloat8E5M2, .result = DType::kFloat16}};
  unsigned seed = 10;
  for (ExpertProblem problem : problems) {
    SCOPED_TRACE(to_string(problem.dtype));
    problem.experts = 8;
    problem.top_k = 4;
    expect_bit_identical_to_the_cpu(problem, ++seed);
  }
}

TEST_F(ExpertCollectives, placements_with_replicas_and_ranks_without_experts) {
  expect_bit_identical_to_the_cpu(
      {.tokens = {8, 5, 6}, .experts = 5, .top_k = 3, .placement = {{0, 3}, {0, 1, 2, 3}, {1, 3, 4}}}, 30);
  expect_bit_identical_to_the_cpu({.tokens = {8, 5, 6}, .experts = 3, .top_k = 2, .placement = {{0, 1, 2}, {}, {1}}},
                                  31);
}

TEST_F(ExpertCollectives, many_random_problems) {
  std::mt19937 random(8);
  const auto any = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  for (unsigned seed = 200; seed < (kSanitized ? 203 : 208); ++seed) {
    ExpertProblem problem{.tokens = std::vector<int>(static_cast<std::size_t>(any(1, 4)))};
    for (int& tokens : problem.tokens) tokens = any(0, 20);
    problem.experts = static_cast<int>(problem.tokens.size()) * any(1, 5);
    problem.top_k = any(1, std::min(8, problem.experts));
    problem.hidden = any(1, 40);
    problem.alignment = any(1, 9);
    SCOPED_TRACE(seed);
    expect_bit_identical_to_the_cpu(problem, seed);
  }
}

TEST_F(ExpertCollectives, drop_the_same_rows_as_the_cpu) {
  expect_the_same_choices({.tokens = {12, 9}, .alignment = 4, .capacity = 15}, 2);
  expect_the_same_choices({.tokens = {3, 14, 8}, .alignment = 3, .capacity = 9}, 3);
  expect_the_same_choices({.tokens = {3, 14, 8}, .alignment = 5, .capacity = 4, .policy = OverflowPolicy::kDropBySlot},
                          13);
}

TEST_F(ExpertCollectives, serve_groups_on_several_hosts) {
  const ExpertProblem problem{.tokens = {6, 11, 0}, .experts = 6, .top_k = 4, .alignment = 2};
  testing::clear_log();
  on_ranks(3, on_hosts(),
           [&](Communicator& comm, const OnDevice& on) { testing::check_device_exchange(comm, on, problem, 40); });
  EXPECT_THAT(testing::log_of(0), Contains(HasSubstr("ncclSend")));
}

TEST_F(ExpertCollectives, serve_groups_whose_devices_do_not_reach_each_other) {
  const ExpertProblem problem{.tokens = {6, 11}, .top_k = 2};
  testing::clear_log();
  on_ranks(2, [&](Communicator& comm, const OnDevice& on) {
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) runtime().fail_next("reach", {StatusCode::kUnsupported, "no way between them"});
    ASSERT_TRUE(comm.barrier().ok());
    testing::check_device_exchange(comm, on, problem, 41);
  });
  EXPECT_THAT(testing::log_of(0), Contains(HasSubstr("ncclSend")));
}

TEST_F(ExpertCollectives, are_not_used_within_a_host) {
  testing::clear_log();
  on_ranks(2, [](Communicator& comm, const OnDevice& on) { ExpertStep(comm, on).all(); });
  EXPECT_THAT(testing::log_of(0), Not(Contains(HasSubstr("ncclSend"))));
}

TEST_F(ExpertCollectives, a_group_on_several_hosts_without_nccl_is_refused_with_the_reason) {
  testing::fail_next("ncclGetUniqueId", testing::nccl::ncclSystemError);
  on_ranks(2, on_hosts(), [](Communicator& comm, const OnDevice& on) {
    const Result<ExpertGroup> group = ExpertGroup::create(comm, testing::small_expert_config(on));
    ASSERT_FALSE(group.ok());
    EXPECT_THAT(group.status().message(), AllOf(HasSubstr("rows cannot be written into the memory of other ranks (the "
                                                          "ranks are on 2 hosts) and cannot travel in collectives: "),
                                                HasSubstr("ncclGetUniqueId")));
    ExpertGroupConfig direct = testing::small_expert_config(on);
    direct.algorithm = ExpertAlgorithm::kDirect;
    const Result<ExpertGroup> impossible = ExpertGroup::create(comm, direct);
    ASSERT_FALSE(impossible.ok());
    EXPECT_EQ(impossible.status().code(), StatusCode::kUnsupported);
    EXPECT_THAT(impossible.status().message(), HasSubstr("the ranks are on 2 hosts"));
  });
}

TEST_F(ExpertCollectives, wait_on_the_host_for_the_map_alone) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on, small_config(on));
    ASSERT_TRUE(step.prepare().ok());
    ASSERT_TRUE(step.dispatch().ok());  // waits for the map
    on.synchronize();
    ASSERT_TRUE(comm.barrier().ok());
    {
      const testing::BusyStream busy = runtime().make_stream_busy(on.stream);
      ASSERT_TRUE(step.combine().ok());
      ASSERT_TRUE(step.dispatch().ok());
      ASSERT_TRUE(step.combine().ok());
      ASSERT_TRUE(comm.barrier().ok());
    }
    step.expect_sums(2 * (1.0F + static_cast<float>(comm.rank())));
  });
}

TEST_F(ExpertCollectives, grow_their_memory_and_reuse_it) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on, small_config(on));
    step.all();
    on.synchronize();
    ASSERT_TRUE(comm.barrier().ok());
    const testing::LiveObjects before = runtime().live();
    for (int i = 0; i < 5; ++i) step.all();
    on.synchronize();
    ASSERT_TRUE(comm.barrier().ok());
    EXPECT_EQ(runtime().live().allocations, before.allocations);
    EXPECT_EQ(runtime().live().host_allocations, before.host_allocations);
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_F(ExpertCollectives, refuse_to_be_captured) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on, small_config(on));
    step.all();
    on.synchronize();
    ASSERT_TRUE(runtime().begin_capture(on.device, on.stream).ok());
    for (const Status& status : {step.prepare(), step.dispatch(), step.combine()}) {
      EXPECT_THAT(status.code(), AnyOf(StatusCode::kUnsupported, StatusCode::kWrongState)) << status.to_string();
    }
    EXPECT_THAT(step.prepare().message(),
                HasSubstr("the stream is being captured, but the rows of this group travel in "
                          "collectives, which need the numbers of rows on the host"));
    ASSERT_TRUE(runtime().end_capture(on.device, on.stream).ok());
    step.all();
    step.expect_sums(2 * (1.0F + static_cast<float>(comm.rank())));
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_F(ExpertCollectives, a_missing_rank_ends_the_wait_for_the_map) {
  std::promise<void> ended;
  std::shared_future<void> end = ended.get_future().share();
  on_ranks(2, {.timeout = std::chrono::milliseconds(600)}, [&](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on, small_config(on));
    step.all();
    on.synchronize();
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) {
      end.wait();
      return;
    }
    ASSERT_TRUE(step.prepare().ok());
    const Status failure = step.dispatch();
    EXPECT_EQ(failure.code(), StatusCode::kTimeout) << failure.to_string();
    EXPECT_THAT(failure.ranks(), ElementsAre(1));
    EXPECT_EQ(step.handle.fetch(on.stream).code(), StatusCode::kAborted);
    ended.set_value();
  });
}

TEST_F(ExpertCollectives, an_overflow_moves_nothing_and_is_reported_on_request) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertGroupConfig config = small_config(on);
    config.max_recv_rows = 3;
    ExpertStep step(comm, on, config);
    step.all();
    EXPECT_EQ(step.recv.values<float>(), std::vector<float>(64, 9.0F));
    EXPECT_EQ(step.handle.fetch(on.stream).code(), StatusCode::kResourceExhausted);
    ASSERT_TRUE(comm.barrier().ok());
  });
}

}  // namespace
}  // namespace accord
