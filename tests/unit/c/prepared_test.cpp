// Prepared calls, the counters of a communicator, and a program's own plans, through the C interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "plan/algorithms.hpp"
#include "plan/json.hpp"
#include "unit/c/c_ranks.hpp"

namespace accord {
namespace {

using ::testing::AllOf;
using testing::call_on;
using ::testing::HasSubstr;
using testing::is_ok;
using testing::run_c_ranks;

TEST(CPrepared, a_call_runs_and_starts_any_number_of_times) {
  run_c_ranks(3, [](accord_communicator_t* comm, int rank) {
    int64_t value = 0;
    const accord_call_t call = call_on(ACCORD_CALL_ALL_REDUCE, ACCORD_INT64, &value);
    accord_prepared_t* sum = nullptr;
    ASSERT_TRUE(is_ok(accord_prepare(comm, &call, 1, nullptr, &sum)));
    for (int round = 1; round <= 3; ++round) {
      value = round * (rank + 1);
      ASSERT_TRUE(is_ok(accord_prepared_run(sum)));
      EXPECT_EQ(value, round * 6);
    }
    std::array<accord_work_t*, 2> works = {};  // one after the other: 6, then 3 times 6
    value = rank + 1;
    for (accord_work_t*& work : works) ASSERT_TRUE(is_ok(accord_prepared_start(sum, &work)));
    accord_prepared_free(sum);  // works in progress continue
    for (accord_work_t* work : works) {
      EXPECT_TRUE(is_ok(accord_work_wait(work)));
      accord_work_free(work);
    }
    EXPECT_EQ(value, 18);
  });
}

TEST(CPrepared, several_calls_run_together_and_counts_are_read_when_they_are_prepared) {
  run_c_ranks(2, [](accord_communicator_t* comm, int rank) {
    const int64_t mine[2] = {rank + 1, rank + 10};
    int64_t theirs = 0, all[3] = {};
    accord_call_t calls[3] = {call_on(ACCORD_CALL_RECV, ACCORD_INT64, &theirs),
                              call_on(ACCORD_CALL_SEND, ACCORD_INT64, const_cast<int64_t*>(mine)),
                              call_on(ACCORD_CALL_ALL_GATHER_V, ACCORD_INT64, nullptr)};
    calls[0].peer = calls[1].peer = 1 - rank;
    std::vector<size_t> counts = {1, 2};
    calls[2].input = mine;
    calls[2].input_count = counts[static_cast<size_t>(rank)];
    calls[2].output = all;
    calls[2].output_count = 3;
    calls[2].output_counts = counts.data();
    accord_prepared_t* batch = nullptr;
    ASSERT_TRUE(is_ok(accord_prepare(comm, calls, 3, nullptr, &batch)));
    counts = {0, 0};
    for (int round = 0; round < 2; ++round) {
      theirs = all[0] = all[1] = all[2] = 0;
      ASSERT_TRUE(is_ok(accord_prepared_run(batch)));
      EXPECT_EQ(theirs, 2 - rank);
      EXPECT_EQ(all[0] * 10000 + all[1] * 100 + all[2], 1 * 10000 + 2 * 100 + 11);
    }
    accord_prepared_free(batch);
  });
}

TEST(CPrepared, an_invalid_call_among_several_is_named_and_no_handle_is_created) {
  run_c_ranks(1, [](accord_communicator_t* comm, int) {
    float value = 1;
    accord_call_t calls[2] = {call_on(ACCORD_CALL_BROADCAST, ACCORD_FLOAT32, &value),
                              call_on(ACCORD_CALL_BROADCAST, ACCORD_FLOAT32, &value)};
    calls[1].root = 1;
    auto* prepared = reinterpret_cast<accord_prepared_t*>(&value);
    EXPECT_EQ(accord_prepare(comm, calls, 2, nullptr, &prepared), ACCORD_INVALID_ARGUMENT);
    EXPECT_EQ(prepared, nullptr);
    EXPECT_THAT(accord_last_error(), AllOf(HasSubstr("call 2 of 2"), HasSubstr("root 1")));
    ASSERT_TRUE(is_ok(accord_prepare(comm, nullptr, 0, nullptr, &prepared)));
    EXPECT_TRUE(is_ok(accord_prepared_run(prepared))) << "no calls at all";
    accord_communicator_close(comm);
    accord_prepared_free(prepared);
  });
}

TEST(CCounters, report_calls_and_bytes_by_kind_and_failures) {
  run_c_ranks(2, [](accord_communicator_t* comm, int rank) {
    float values[10] = {}, all[20];
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE(is_ok(accord_all_reduce(comm, values, values, 10, ACCORD_FLOAT32, ACCORD_SUM, nullptr)));
    ASSERT_TRUE(is_ok(accord_all_gather(comm, values, all, 10, ACCORD_FLOAT32, nullptr)));
    ASSERT_TRUE(is_ok(rank == 0 ? accord_send(comm, values, 2, ACCORD_FLOAT32, 1, nullptr)
                                : accord_recv(comm, values, 2, ACCORD_FLOAT32, 0, nullptr)));
    const auto of = [&](accord_call_kind_t kind) {
      uint64_t calls = 99, bytes = 99;
      EXPECT_TRUE(is_ok(accord_communicator_counters_of(comm, kind, &calls, &bytes)));
      EXPECT_TRUE(is_ok(accord_communicator_counters_of(comm, kind, nullptr, nullptr)));
      return std::pair(calls, bytes);
    };
    using Pair = std::pair<uint64_t, uint64_t>;
    EXPECT_EQ(of(ACCORD_CALL_ALL_REDUCE), Pair(3, 120));
    EXPECT_EQ(of(ACCORD_CALL_ALL_GATHER), Pair(1, 40));
    EXPECT_EQ(of(ACCORD_CALL_ALL_GATHER_V), Pair(1, 40));
    EXPECT_EQ(of(ACCORD_CALL_SEND), Pair(1, 8));
    EXPECT_EQ(of(ACCORD_CALL_RECV), Pair(1, 8));
    EXPECT_EQ(of(ACCORD_CALL_REDUCE), Pair(0, 0));
    EXPECT_EQ(accord_communicator_counters_of(comm, 17, nullptr, nullptr), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("kind 17 is not defined in accord.h"));

    accord_counters_t counters = ACCORD_COUNTERS_INIT;
    ASSERT_TRUE(is_ok(accord_communicator_counters(comm, &counters)));
    EXPECT_EQ(counters.failures, 0U);
    EXPECT_EQ(counters.queued, 0U);
    const accord_call_t call = call_on(ACCORD_CALL_ALL_REDUCE, ACCORD_FLOAT32, values);
    accord_work_t* work = nullptr;
    ASSERT_TRUE(is_ok(accord_start(comm, &call, nullptr, &work)));
    ASSERT_TRUE(is_ok(accord_work_wait(work)));
    accord_work_free(work);
    ASSERT_TRUE(is_ok(accord_communicator_counters(comm, &counters)));
    EXPECT_EQ(counters.queued, 1U);
    if (rank == 1) {
      ASSERT_TRUE(is_ok(accord_communicator_close(comm)));
    } else {
      EXPECT_EQ(accord_barrier(comm, nullptr), ACCORD_PEER_LOST);
      ASSERT_TRUE(is_ok(accord_communicator_counters(comm, &counters)));
      EXPECT_EQ(counters.failures, 1U);
    }
  });
}

/// Returns a correct plan of a built-in algorithm, under its own name.
std::string plan_text(int ranks, const std::string& name) {
  const Result<const plan::AlgorithmEntry*> entry = plan::algorithm_by_name(Collective::kAllReduce, "two_shot");
  Result<plan::Plan> made =
      plan::make_plan(**entry, topology::Topology::uniform(ranks), {.collective = Collective::kAllReduce});
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  made->name = name;
  return plan::to_json(*made);
}

TEST(CPlans, from_text_or_a_file_serve_calls_by_name) {
  accord_plan_options_t options = ACCORD_PLAN_OPTIONS_INIT;
  options.name = "c_text";
  ASSERT_TRUE(is_ok(accord_register_plan(plan_text(2, "own").c_str(), &options)));
  ASSERT_TRUE(is_ok(accord_register_plan(plan_text(2, "own").c_str(), &options))) << "the same again";
  const std::string path = (std::filesystem::temp_directory_path() / "accord_c_plan.json").string();
  std::ofstream(path) << plan_text(2, "c_file");
  ASSERT_TRUE(is_ok(accord_register_plan_file(path.c_str(), nullptr)));
  testing::run_store_ranks(2, [](accord_store_t* store, int rank) {
    accord_communicator_options_t group = ACCORD_COMMUNICATOR_OPTIONS_INIT;
    group.select = "all_reduce:0-1k=c_text,1k-inf=c_file";
    accord_communicator_t* comm = nullptr;
    ASSERT_TRUE(is_ok(accord_communicator_create(store, rank, 2, &group, &comm)));
    for (const size_t count : {100, 1000}) {
      std::vector<int64_t> values(count, rank + 1);
      ASSERT_TRUE(
          is_ok(accord_all_reduce(comm, values.data(), values.data(), count, ACCORD_INT64, ACCORD_SUM, nullptr)));
      EXPECT_EQ(values, std::vector<int64_t>(count, 3));
    }
    accord_communicator_free(comm);
  });
  std::filesystem::remove(path);
}

TEST(CPlans, that_are_invalid_or_missing_are_rejected) {
  EXPECT_EQ(accord_register_plan("{}", nullptr), ACCORD_CORRUPT);
  EXPECT_EQ(accord_register_plan_file("/nonexistent/plan.json", nullptr), ACCORD_NOT_FOUND);
  EXPECT_THAT(accord_last_error(), HasSubstr("/nonexistent/plan.json"));
  accord_plan_options_t options = ACCORD_PLAN_OPTIONS_INIT;
  options.name = "two_shot";
  EXPECT_EQ(accord_register_plan(plan_text(2, "own").c_str(), &options), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("built-in algorithm \"two_shot\""));
  options.name = "c_range";
  options.bytes = "4k-0";
  EXPECT_EQ(accord_register_plan(plan_text(2, "own").c_str(), &options), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("4k-0"));
}

}  // namespace
}  // namespace accord
