// Errors of a C caller that are found before a call starts: null where an object is required, and impossible counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "unit/c/c_ranks.hpp"

namespace accord {
namespace {

using ::testing::AllOf;
using testing::call_on;
using ::testing::HasSubstr;
using testing::is_ok;
using testing::run_c_ranks;

/// Valid arguments for tests in which a different argument is wrong.
class Arguments : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(is_ok(accord_memory_store_create(&store_)));
    ASSERT_TRUE(is_ok(accord_communicator_create(store_, 0, 1, nullptr, &comm_)));
  }
  void TearDown() override {
    accord_communicator_free(comm_);
    accord_store_free(store_);
  }

  accord_store_t* store_ = nullptr;
  accord_communicator_t* comm_ = nullptr;
  accord_call_t call_ = ACCORD_CALL_INIT;
};

TEST_F(Arguments, that_are_null_are_named) {
  accord_store_t* made = nullptr;
  accord_communicator_t* group = nullptr;
  accord_elastic_group_t* elastic = nullptr;
  accord_work_t* work = nullptr;
  accord_prepared_t* prepared = nullptr;
  accord_counters_t counters = ACCORD_COUNTERS_INIT;
  int32_t number = 0;
  const char* text = nullptr;
  char handle[ACCORD_HANDLE_BYTES] = {};
  float value = 1;
  accord_tcp_store_options_t tcp = ACCORD_TCP_STORE_OPTIONS_INIT;
  ASSERT_TRUE(is_ok(accord_start(comm_, (call_.kind = ACCORD_CALL_BARRIER, &call_), nullptr, &work)));
  ASSERT_TRUE(is_ok(accord_work_wait(work)));
  accord_work_free(work);

  const std::vector<std::pair<std::string, accord_status_t>> refusals = [&] {
    std::vector<std::pair<std::string, accord_status_t>> seen;
    const auto add = [&](accord_status_t status) { seen.emplace_back(accord_last_error(), status); };
    add(accord_check_feature(nullptr));
    add(accord_memory_store_create(nullptr));
    add(accord_file_store_create(nullptr, &made));
    add(accord_file_store_create("x", nullptr));
    add(accord_tcp_store_create(nullptr, &made));
    add(accord_tcp_store_create(&tcp, nullptr));
    add(accord_prefix_store_create(nullptr, "x", &made));
    add(accord_prefix_store_create(store_, nullptr, &made));
    add(accord_prefix_store_create(store_, "x", nullptr));
    add(accord_store_set(nullptr, "k", "v", 1));
    add(accord_store_set(store_, nullptr, "v", 1));
    add(accord_store_set(store_, "k", nullptr, 1));
    add(accord_store_get(nullptr, "k", 0, nullptr, 0, nullptr));
    add(accord_store_get(store_, nullptr, 0, nullptr, 0, nullptr));
    add(accord_store_add(nullptr, "k", 1, nullptr));
    add(accord_store_add(store_, nullptr, 1, nullptr));
    add(accord_store_erase(nullptr, "k"));
    add(accord_store_erase(store_, nullptr));
    add(accord_store_describe(nullptr, &text));
    add(accord_store_describe(store_, nullptr));
    add(accord_communicator_create(nullptr, 0, 1, nullptr, &group));
    add(accord_communicator_create(store_, 0, 1, nullptr, nullptr));
    add(accord_communicator_from_environment(nullptr, nullptr));
    add(accord_communicator_split(nullptr, 0, 0, nullptr, &group));
    add(accord_communicator_split(comm_, 0, 0, nullptr, nullptr));
    add(accord_communicator_split_ranks(nullptr, &number, 1, nullptr, &group));
    add(accord_communicator_split_ranks(comm_, nullptr, 1, nullptr, &group));
    add(accord_communicator_split_ranks(comm_, &number, 1, nullptr, nullptr));
    add(accord_communicator_grow(nullptr, store_, 1, nullptr, &group));
    add(accord_communicator_grow(comm_, nullptr, 1, nullptr, &group));
    add(accord_communicator_grow(comm_, store_, 1, nullptr, nullptr));
    add(accord_communicator_join(nullptr, nullptr, &group));
    add(accord_communicator_join(store_, nullptr, nullptr));
    add(accord_communicator_shrink(nullptr, nullptr, 0, &group));
    add(accord_communicator_shrink(comm_, nullptr, 0, nullptr));
    add(accord_communicator_alone(nullptr, nullptr));
    add(accord_communicator_handle(nullptr, handle, sizeof handle));
    add(accord_communicator_handle(comm_, nullptr, sizeof handle));
    add(accord_communicator_reconfigure(nullptr, "u", &text, 1, ACCORD_RANKS_AS_LISTED, 0, &group));
    add(accord_communicator_reconfigure(comm_, nullptr, &text, 1, ACCORD_RANKS_AS_LISTED, 0, &group));
    add(accord_communicator_reconfigure(comm_, "u", nullptr, 1, ACCORD_RANKS_AS_LISTED, 0, &group));
    add(accord_communicator_reconfigure(comm_, "u", &text, 1, ACCORD_RANKS_AS_LISTED, 0, nullptr));
    add(accord_elastic_group_open(nullptr, nullptr, &elastic));
    add(accord_elastic_group_open(store_, nullptr, nullptr));
    add(accord_elastic_group_from_environment(nullptr, nullptr));
    add(accord_elastic_group_form(nullptr, &group));
    add(accord_elastic_group_others_wait(nullptr, &number));
    add(accord_elastic_group_most_advanced(nullptr, 0, &number));
    add(accord_elastic_group_round(nullptr, nullptr));
    add(accord_elastic_group_finish(nullptr));
    add(accord_elastic_group_close(nullptr));
    add(accord_communicator_rank(nullptr, &number));
    add(accord_communicator_rank(comm_, nullptr));
    add(accord_communicator_size(nullptr, &number));
    add(accord_communicator_size(comm_, nullptr));
    add(accord_communicator_name(nullptr, &text));
    add(accord_communicator_name(comm_, nullptr));
    add(accord_communicator_state(nullptr, &number));
    add(accord_communicator_state(comm_, nullptr));
    add(accord_communicator_status(nullptr));
    add(accord_communicator_abort(nullptr, "x"));
    add(accord_communicator_dump(nullptr, "x"));
    add(accord_communicator_dump(comm_, nullptr));
    add(accord_communicator_close(nullptr));
    add(accord_run(nullptr, &call_, nullptr));
    add(accord_run(comm_, nullptr, nullptr));
    add(accord_start(nullptr, &call_, nullptr, &work));
    add(accord_start(comm_, nullptr, nullptr, &work));
    add(accord_start(comm_, &call_, nullptr, nullptr));
    add(accord_barrier(nullptr, nullptr));
    add(accord_broadcast(nullptr, &value, 1, ACCORD_FLOAT32, 0, nullptr));
    add(accord_all_gather(nullptr, &value, &value, 1, ACCORD_FLOAT32, nullptr));
    add(accord_reduce_scatter(nullptr, &value, &value, 1, ACCORD_FLOAT32, ACCORD_SUM, nullptr));
    add(accord_all_reduce(nullptr, &value, &value, 1, ACCORD_FLOAT32, ACCORD_SUM, nullptr));
    add(accord_reduce(nullptr, &value, &value, 1, ACCORD_FLOAT32, ACCORD_SUM, 0, nullptr));
    add(accord_gather(nullptr, &value, &value, 1, ACCORD_FLOAT32, 0, nullptr));
    add(accord_scatter(nullptr, &value, &value, 1, ACCORD_FLOAT32, 0, nullptr));
    add(accord_all_to_all(nullptr, &value, &value, 1, ACCORD_FLOAT32, nullptr));
    add(accord_send(nullptr, &value, 1, ACCORD_FLOAT32, 0, nullptr));
    add(accord_recv(nullptr, &value, 1, ACCORD_FLOAT32, 0, nullptr));
    add(accord_prepare(nullptr, &call_, 1, nullptr, &prepared));
    add(accord_prepare(comm_, nullptr, 1, nullptr, &prepared));
    add(accord_prepare(comm_, &call_, 1, nullptr, nullptr));
    add(accord_prepared_run(nullptr));
    add(accord_prepared_start(nullptr, &work));
    add(accord_communicator_counters(nullptr, &counters));
    add(accord_communicator_counters(comm_, nullptr));
    add(accord_communicator_counters_of(nullptr, ACCORD_CALL_BARRIER, nullptr, nullptr));
    add(accord_register_plan(nullptr, nullptr));
    add(accord_register_plan_file(nullptr, nullptr));
    add(accord_work_test(nullptr, &number));
    add(accord_work_wait(nullptr));
    add(accord_work_wait_for(nullptr, 0, &number));
    add(accord_work_status(nullptr));
    return seen;
  }();
  const std::vector<std::string> expected = {"check_feature: name",
                                             "memory_store_create: store",
                                             "file_store_create: path",
                                             "file_store_create: store",
                                             "tcp_store_create: options",
                                             "tcp_store_create: store",
                                             "prefix_store_create: parent",
                                             "prefix_store_create: prefix",
                                             "prefix_store_create: store",
                                             "store_set: store",
                                             "store_set: key",
                                             "store_set: value",
                                             "store_get: store",
                                             "store_get: key",
                                             "store_add: store",
                                             "store_add: key",
                                             "store_erase: store",
                                             "store_erase: key",
                                             "store_describe: store",
                                             "store_describe: description",
                                             "communicator_create: store",
                                             "communicator_create: communicator",
                                             "communicator_from_environment: communicator",
                                             "communicator_split: communicator",
                                             "communicator_split: part",
                                             "communicator_split_ranks: communicator",
                                             "communicator_split_ranks: ranks",
                                             "communicator_split_ranks: part",
                                             "communicator_grow: communicator",
                                             "communicator_grow: store",
                                             "communicator_grow: grown",
                                             "communicator_join: store",
                                             "communicator_join: communicator",
                                             "communicator_shrink: communicator",
                                             "communicator_shrink: rest",
                                             "communicator_alone: communicator",
                                             "communicator_handle: communicator",
                                             "communicator_handle: text",
                                             "communicator_reconfigure: communicator",
                                             "communicator_reconfigure: uuid",
                                             "communicator_reconfigure: handles",
                                             "communicator_reconfigure: formed",
                                             "elastic_group_open: store",
                                             "elastic_group_open: group",
                                             "elastic_group_from_environment: group",
                                             "elastic_group_form: group",
                                             "elastic_group_others_wait: group",
                                             "elastic_group_most_advanced: group",
                                             "elastic_group_round: group",
                                             "elastic_group_finish: group",
                                             "elastic_group_close: group",
                                             "communicator_rank: communicator",
                                             "communicator_rank: rank",
                                             "communicator_size: communicator",
                                             "communicator_size: size",
                                             "communicator_name: communicator",
                                             "communicator_name: name",
                                             "communicator_state: communicator",
                                             "communicator_state: state",
                                             "communicator_status: communicator",
                                             "communicator_abort: communicator",
                                             "communicator_dump: communicator",
                                             "communicator_dump: directory",
                                             "communicator_close: communicator",
                                             "run: communicator",
                                             "run: call",
                                             "start: communicator",
                                             "start: call",
                                             "start: work",
                                             "barrier: communicator",
                                             "broadcast: communicator",
                                             "all_gather: communicator",
                                             "reduce_scatter: communicator",
                                             "all_reduce: communicator",
                                             "reduce: communicator",
                                             "gather: communicator",
                                             "scatter: communicator",
                                             "all_to_all: communicator",
                                             "send: communicator",
                                             "recv: communicator",
                                             "prepare: communicator",
                                             "prepare: calls",
                                             "prepare: prepared",
                                             "prepared_run: prepared",
                                             "prepared_start: prepared",
                                             "communicator_counters: communicator",
                                             "communicator_counters: counters",
                                             "communicator_counters_of: communicator",
                                             "register_plan: json",
                                             "register_plan_file: path",
                                             "work_test: work",
                                             "work_wait: work",
                                             "work_wait_for: work",
                                             "work_status: work"};
  ASSERT_EQ(refusals.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(refusals[i].first, "accord_" + expected[i] + " is null");
    EXPECT_EQ(refusals[i].second, ACCORD_INVALID_ARGUMENT) << expected[i];
  }
  EXPECT_TRUE(is_ok(accord_barrier(comm_, nullptr))) << "and nothing was harmed";
}

TEST_F(Arguments, that_are_null_may_be_freed) {
  accord_work_free(nullptr);
  accord_prepared_free(nullptr);
  accord_communicator_free(nullptr);
  accord_store_free(nullptr);
}

TEST_F(Arguments, that_receive_a_handle_are_null_after_a_failure) {
  auto* made = reinterpret_cast<accord_store_t*>(this);
  auto* group = reinterpret_cast<accord_communicator_t*>(this);
  auto* work = reinterpret_cast<accord_work_t*>(this);
  EXPECT_EQ(accord_file_store_create(nullptr, &made), ACCORD_INVALID_ARGUMENT);
  EXPECT_EQ(made, nullptr);
  EXPECT_EQ(accord_communicator_create(store_, 7, 1, nullptr, &group), ACCORD_INVALID_ARGUMENT);
  EXPECT_EQ(group, nullptr);
  EXPECT_EQ(accord_start(comm_, nullptr, nullptr, &work), ACCORD_INVALID_ARGUMENT);
  EXPECT_EQ(work, nullptr);
}

TEST_F(Arguments, with_a_wrong_count_are_rejected_without_overflow) {
  float value = 1;
  for (const size_t count : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4}) {
    EXPECT_EQ(accord_all_gather(comm_, &value, &value, count, ACCORD_FLOAT32, nullptr), ACCORD_INVALID_ARGUMENT);
    EXPECT_EQ(accord_reduce_scatter(comm_, &value, &value, count, ACCORD_FLOAT32, ACCORD_SUM, nullptr),
              ACCORD_INVALID_ARGUMENT);
    EXPECT_EQ(accord_all_to_all(comm_, &value, &value, count, ACCORD_FLOAT32, nullptr), ACCORD_INVALID_ARGUMENT);
  }
  run_c_ranks(2, [](accord_communicator_t* comm, int) {
    float element = 1;
    // Twice this is 2 modulo 2^64: if the product wrapped, it would fit.
    EXPECT_EQ(accord_all_to_all(comm, &element, &element, SIZE_MAX / 2 + 2, ACCORD_UINT8, nullptr),
              ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("impossible count"));
  });
}

}  // namespace
}  // namespace accord
