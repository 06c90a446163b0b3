// Stores, communicators and works as C handles: what they report, how they fail, and that they may be freed in any
// order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ranks/process_ranks.hpp"
#include "unit/c/c_ranks.hpp"

namespace accord {
namespace {

using ::testing::AllOf;
using testing::call_on;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::is_ok;
using testing::last_error_ranks;
using testing::run_c_ranks;
using ::testing::StartsWith;

constexpr int64_t kSecond = 1000000000;

/// Sets, gets, adds and erases as a C program does.
void exercise(accord_store_t* store) {
  char buffer[8] = "#######";
  size_t needed = 0;
  int64_t sum = 0;
  EXPECT_TRUE(is_ok(accord_store_set(store, "key", "a\0b", 3)));
  EXPECT_TRUE(is_ok(accord_store_get(store, "key", kSecond, nullptr, 0, &needed)));
  EXPECT_EQ(needed, 3U);
  EXPECT_EQ(accord_store_get(store, "key", kSecond, buffer, 2, nullptr), ACCORD_RESOURCE_EXHAUSTED);
  EXPECT_EQ(buffer[0], '#');
  EXPECT_TRUE(is_ok(accord_store_get(store, "key", kSecond, buffer, sizeof(buffer), &needed)));
  EXPECT_EQ(std::string(buffer, 4), std::string("a\0b#", 4));
  EXPECT_TRUE(is_ok(accord_store_set(store, "empty", nullptr, 0)));
  EXPECT_TRUE(is_ok(accord_store_get(store, "empty", kSecond, nullptr, 0, &needed)));
  EXPECT_EQ(needed, 0U);
  EXPECT_TRUE(is_ok(accord_store_add(store, "number", 5, nullptr)));
  EXPECT_TRUE(is_ok(accord_store_add(store, "number", -2, &sum)));
  EXPECT_EQ(sum, 3);
  EXPECT_TRUE(is_ok(accord_store_erase(store, "key")));
  EXPECT_EQ(accord_store_get(store, "key", 0, nullptr, 0, nullptr), ACCORD_TIMEOUT);
  EXPECT_THAT(accord_last_error(), HasSubstr("key"));
  EXPECT_EQ(accord_store_get(store, "key", -1, nullptr, 0, nullptr), ACCORD_INVALID_ARGUMENT);
}

std::string description_of(accord_store_t* store) {
  const char* text = nullptr;
  EXPECT_TRUE(is_ok(accord_store_describe(store, &text)));
  return text;
}

TEST(CStores, in_memory_in_a_directory_and_with_a_prefix_hold_values) {
  const testing::TemporaryDirectory directory;
  accord_store_t *memory = nullptr, *file = nullptr, *prefix = nullptr;
  ASSERT_TRUE(is_ok(accord_memory_store_create(&memory)));
  ASSERT_TRUE(is_ok(accord_file_store_create(directory.path().c_str(), &file)));
  ASSERT_TRUE(is_ok(accord_prefix_store_create(memory, "part", &prefix)));
  ASSERT_TRUE(is_ok(accord_store_set(prefix, "key", "1", 1)));
  EXPECT_TRUE(is_ok(accord_store_get(memory, "part/key", 0, nullptr, 0, nullptr)));
  EXPECT_EQ(description_of(file), "file://" + directory.path());
  exercise(memory);
  exercise(file);
  accord_store_free(memory);
  exercise(prefix);  // keeps its parent's store alive
  accord_store_free(prefix);
  accord_store_free(file);
}

TEST(CStores, over_tcp_are_shared_by_host_and_client) {
  accord_tcp_store_options_t options = ACCORD_TCP_STORE_OPTIONS_INIT;
  accord_store_t *host = nullptr, *client = nullptr;
  options.role = ACCORD_STORE_HOST;
  ASSERT_TRUE(is_ok(accord_tcp_store_create(&options, &host)));
  const std::string url = description_of(host);
  ASSERT_THAT(url, StartsWith("tcp://127.0.0.1:"));
  options.role = ACCORD_STORE_CLIENT;
  options.port = std::stoi(url.substr(url.rfind(':') + 1));
  options.timeout_ns = 30 * kSecond;
  ASSERT_TRUE(is_ok(accord_tcp_store_create(&options, &client)));
  ASSERT_TRUE(is_ok(accord_store_set(host, "who", "host", 4)));
  EXPECT_TRUE(is_ok(accord_store_get(client, "who", kSecond, nullptr, 0, nullptr)));
  exercise(client);
  accord_store_free(client);
  accord_store_free(host);
  options.timeout_ns = -1;
  EXPECT_EQ(accord_tcp_store_create(&options, &client), ACCORD_INVALID_ARGUMENT);
  options.timeout_ns = 0;
  options.role = 7;
  EXPECT_EQ(accord_tcp_store_create(&options, &client), ACCORD_INVALID_ARGUMENT);
  EXPECT_THAT(accord_last_error(), HasSubstr("role 7"));
}

TEST(CCommunicators, describe_themselves) {
  testing::run_store_ranks(3, [](accord_store_t* store, int rank) {
    accord_communicator_options_t options = ACCORD_COMMUNICATOR_OPTIONS_INIT;
    accord_communicator_t* comm = nullptr;
    int32_t number = -1;
    accord_state_t state = -1;
    const char* name = nullptr;
    options.name = "tp";
    options.timeout_ns = 60 * kSecond;
    options.transport = "inproc";
    options.select = "all_reduce:0-inf=two_shot";
    ASSERT_TRUE(is_ok(accord_communicator_create(store, rank, 3, &options, &comm)));
    EXPECT_TRUE(is_ok(accord_communicator_rank(comm, &number)));
    EXPECT_EQ(number, rank);
    EXPECT_TRUE(is_ok(accord_communicator_size(comm, &number)));
    EXPECT_EQ(number, 3);
    EXPECT_TRUE(is_ok(accord_communicator_name(comm, &name)));
    EXPECT_STREQ(name, "tp");
    EXPECT_TRUE(is_ok(accord_communicator_state(comm, &state)));
    EXPECT_EQ(state, ACCORD_STATE_READY);
    EXPECT_TRUE(is_ok(accord_communicator_status(comm)));
    EXPECT_TRUE(is_ok(accord_barrier(comm, nullptr)));
    const testing::TemporaryDirectory directory;
    EXPECT_TRUE(is_ok(accord_communicator_dump(comm, directory.path().c_str())));
    EXPECT_FALSE(std::filesystem::is_empty(directory.path()));
    EXPECT_EQ(accord_communicator_dump(comm, ""), ACCORD_INVALID_ARGUMENT);
    EXPECT_TRUE(is_ok(accord_communicator_close(comm)));
    EXPECT_TRUE(is_ok(accord_communicator_close(comm)));
    EXPECT_TRUE(is_ok(accord_communicator_state(comm, &state)));
    EXPECT_EQ(state, ACCORD_STATE_CLOSED);
    EXPECT_EQ(accord_communicator_status(comm), ACCORD_CLOSED);
    EXPECT_EQ(accord_barrier(comm, nullptr), ACCORD_CLOSED);
    accord_communicator_free(comm);
  });
}

TEST(CCommunicators, apply_their_options) {
  accord_store_t* store = nullptr;
  accord_communicator_t* comm = nullptr;
  ASSERT_TRUE(is_ok(accord_memory_store_create(&store)));
  const auto refused = [&](auto change, accord_status_t expected) {
    accord_communicator_options_t options = ACCORD_COMMUNICATOR_OPTIONS_INIT;
    change(options);
    EXPECT_EQ(accord_communicator_create(store, 0, 2, &options, &comm), expected);
    return std::string(accord_last_error());
  };
  using Options = accord_communicator_options_t;
  EXPECT_THAT(refused([](Options& o) { o.transport = "inprok"; }, ACCORD_NOT_FOUND), HasSubstr("inproc"));
  EXPECT_THAT(refused([](Options& o) { o.select = "all_reduze:0-inf=direct"; }, ACCORD_INVALID_ARGUMENT),
              HasSubstr("all_reduce"));
  EXPECT_THAT(refused([](Options& o) { o.timeout_ns = -1; }, ACCORD_INVALID_ARGUMENT), HasSubstr("timeout_ns is -1"));
  EXPECT_THAT(refused([](Options& o) { o.timeout_ns = 20000000, o.name = "lonely"; }, ACCORD_TIMEOUT),
              HasSubstr("lonely"));
  EXPECT_THAT(last_error_ranks(), ElementsAre(1));
  accord_store_free(store);
}

TEST(CCommunicators, split_by_color_and_key) {
  run_c_ranks(4, [](accord_communicator_t* comm, int rank) {
    accord_communicator_t *pair = nullptr, *none = nullptr;
    const char* name = nullptr;
    int32_t number = -1, other = rank;
    ASSERT_TRUE(is_ok(accord_communicator_split(comm, rank % 2, -rank, nullptr, &pair)));
    EXPECT_TRUE(is_ok(accord_communicator_name(pair, &name)));
    EXPECT_EQ(name, "world/" + std::to_string(rank % 2));
    EXPECT_TRUE(is_ok(accord_communicator_rank(pair, &number)));
    EXPECT_EQ(number, rank < 2 ? 1 : 0);
    EXPECT_TRUE(is_ok(accord_broadcast(pair, &other, 1, ACCORD_INT32, 0, nullptr)));
    EXPECT_EQ(other, rank % 2 + 2);
    ASSERT_TRUE(is_ok(accord_communicator_split(comm, rank == 0 ? 5 : -1, 0, "alone", &none)));
    EXPECT_EQ(none != nullptr, rank == 0);
    accord_communicator_free(none);
    accord_communicator_free(pair);
  });
}

TEST(CCommunicators, split_by_a_list_in_calls_of_only_the_listed_ranks) {
  run_c_ranks(3, [](accord_communicator_t* comm, int rank) {
    const int32_t list[] = {2, 0};
    accord_communicator_t *pair = nullptr, *none = comm;
    const char* name = nullptr;
    int32_t number = -1;
    ASSERT_TRUE(is_ok(accord_communicator_split_ranks(comm, nullptr, 0, nullptr, &none)));
    EXPECT_EQ(none, nullptr);
    const accord_status_t status = accord_communicator_split_ranks(comm, list, 2, nullptr, &pair);
    if (rank == 1) {
      EXPECT_EQ(status, ACCORD_INVALID_ARGUMENT);
      EXPECT_EQ(pair, nullptr);
      return;
    }
    ASSERT_TRUE(is_ok(status));
    EXPECT_TRUE(is_ok(accord_communicator_name(pair, &name)));
    EXPECT_STREQ(name, "world/2,0");
    EXPECT_TRUE(is_ok(accord_communicator_rank(pair, &number)));
    EXPECT_EQ(number, rank == 2 ? 0 : 1);
    EXPECT_TRUE(is_ok(accord_barrier(pair, nullptr)));
    accord_communicator_free(pair);
  });
}

TEST(CCommunicators, shrink_to_the_survivors) {
  run_c_ranks(3, [](accord_communicator_t* comm, int rank) {
    if (rank == 1) {
      EXPECT_TRUE(is_ok(accord_communicator_close(comm)));
      return;
    }
    accord_communicator_t *rest = nullptr, *again = nullptr;
    const char* name = nullptr;
    int32_t value = rank + 1;
    EXPECT_EQ(accord_communicator_shrink(comm, nullptr, -1, &rest), ACCORD_INVALID_ARGUMENT);
    ASSERT_TRUE(is_ok(accord_communicator_shrink(comm, nullptr, 0, &rest)));
    EXPECT_TRUE(is_ok(accord_communicator_name(rest, &name)));
    EXPECT_STREQ(name, "world/shrunk");
    EXPECT_TRUE(is_ok(accord_all_reduce(rest, &value, &value, 1, ACCORD_INT32, ACCORD_SUM, nullptr)));
    EXPECT_EQ(value, 1 + 3);
    EXPECT_EQ(accord_communicator_shrink(comm, "again", 0, &again), ACCORD_WRONG_STATE);
    EXPECT_EQ(again, nullptr);
    accord_communicator_free(rest);
  });
}

TEST(CCommunicators, reconfigure_by_handles) {
  run_c_ranks(3, [](accord_communicator_t* comm, int rank) {
    char mine[ACCORD_HANDLE_BYTES] = {}, all[3][ACCORD_HANDLE_BYTES] = {};
    EXPECT_EQ(accord_communicator_handle(comm, mine, 16), ACCORD_RESOURCE_EXHAUSTED);
    EXPECT_THAT(accord_last_error(), HasSubstr("room for 16"));
    ASSERT_TRUE(is_ok(accord_communicator_handle(comm, mine, sizeof mine)));
    ASSERT_TRUE(is_ok(accord_all_gather(comm, mine, all, sizeof mine, ACCORD_UINT8, nullptr)));
    const char* const without_rank_1[] = {all[2], all[0]};
    accord_communicator_t* pair = nullptr;
    EXPECT_EQ(accord_communicator_reconfigure(comm, "a", without_rank_1, 2, 7, 0, &pair), ACCORD_INVALID_ARGUMENT);
    if (rank == 1) {
      EXPECT_EQ(accord_communicator_reconfigure(comm, "a", without_rank_1, 2, ACCORD_RANKS_AS_LISTED, 0, &pair),
                ACCORD_INVALID_ARGUMENT);
      EXPECT_THAT(accord_last_error(), HasSubstr("do not contain this rank's"));
      return;
    }
    ASSERT_TRUE(is_ok(accord_communicator_reconfigure(comm, "a", without_rank_1, 2, ACCORD_RANKS_AS_LISTED, 0, &pair)));
    int32_t place = -1, value = rank + 1;
    EXPECT_TRUE(is_ok(accord_communicator_rank(pair, &place)));
    EXPECT_EQ(place, rank == 2 ? 0 : 1);
    EXPECT_TRUE(is_ok(accord_all_reduce(pair, &value, &value, 1, ACCORD_INT32, ACCORD_SUM, nullptr)));
    EXPECT_EQ(value, 1 + 3);
    accord_communicator_free(pair);
  });
}

TEST(CCommunicators, one_process_is_alone_without_a_store) {
  accord_communicator_options_t options = ACCORD_COMMUNICATOR_OPTIONS_INIT;
  options.name = "lonely";
  accord_communicator_t* comm = nullptr;
  ASSERT_TRUE(is_ok(accord_communicator_alone(&options, &comm)));
  int32_t size = 0;
  const char* name = nullptr;
  EXPECT_TRUE(is_ok(accord_communicator_size(comm, &size)));
  EXPECT_TRUE(is_ok(accord_communicator_name(comm, &name)));
  EXPECT_EQ(size, 1);
  EXPECT_STREQ(name, "lonely");
  accord_communicator_free(comm);
}

TEST(CFailures, by_different_calls_name_both_calls) {
  run_c_ranks(2, [](accord_communicator_t* comm, int rank) {
    int32_t value = 1;
    const accord_dtype_t dtype = rank == 0 ? ACCORD_FLOAT32 : ACCORD_INT32;
    EXPECT_EQ(accord_all_reduce(comm, &value, &value, 1, dtype, ACCORD_SUM, nullptr), ACCORD_MISMATCH);
    EXPECT_THAT(accord_last_error(), AllOf(HasSubstr("float32"), HasSubstr("int32")));
    EXPECT_FALSE(last_error_ranks().empty());
    accord_state_t state = -1;
    EXPECT_TRUE(is_ok(accord_communicator_state(comm, &state)));
    EXPECT_EQ(state, ACCORD_STATE_FAILED);
  });
}

TEST(CFailures, by_an_abort_give_its_reason_on_all_ranks) {
  run_c_ranks(2, [](accord_communicator_t* comm, int rank) {
    if (rank == 1) {
      EXPECT_TRUE(is_ok(accord_communicator_abort(comm, "a loss of nan")));
    }
    EXPECT_EQ(accord_barrier(comm, nullptr), ACCORD_ABORTED);
    EXPECT_THAT(accord_last_error(), HasSubstr("a loss of nan"));
    EXPECT_EQ(accord_communicator_status(comm), ACCORD_ABORTED);
  });
}

TEST(CFailures, by_a_missing_rank_occur_at_the_timeout_of_the_call) {
  std::atomic<bool> seen = false;
  run_c_ranks(2, [&](accord_communicator_t* comm, int rank) {
    accord_call_options_t options = ACCORD_CALL_OPTIONS_INIT;
    options.timeout_ns = 20000000;
    if (rank == 1) {
      seen.wait(false);
      EXPECT_EQ(accord_barrier(comm, nullptr), ACCORD_TIMEOUT);
    } else {
      EXPECT_EQ(accord_barrier(comm, &options), ACCORD_TIMEOUT);
      EXPECT_THAT(last_error_ranks(), ElementsAre(1));
      EXPECT_EQ(accord_check_feature(nullptr), ACCORD_INVALID_ARGUMENT);
      EXPECT_THAT(last_error_ranks(), ElementsAre()) << "the ranks are those of the last error";
      seen = true;
      seen.notify_all();
    }
  });
}

TEST(CWorks, are_pending_until_the_other_ranks_arrive) {
  run_c_ranks(2, [](accord_communicator_t* comm, int rank) {
    int32_t value = rank + 1, go = 1, done = -1;
    const accord_call_t call = call_on(ACCORD_CALL_ALL_REDUCE, ACCORD_INT32, &value);
    if (rank == 1) {
      ASSERT_TRUE(is_ok(accord_recv(comm, &go, 1, ACCORD_INT32, 0, nullptr)));
    }
    accord_work_t* work = nullptr;
    ASSERT_TRUE(is_ok(accord_start(comm, &call, nullptr, &work)));
    if (rank == 0) {
      EXPECT_TRUE(is_ok(accord_work_test(work, &done)));
      EXPECT_EQ(done, 0);
      EXPECT_TRUE(is_ok(accord_work_wait_for(work, 1000000, &done)));
      EXPECT_EQ(done, 0);
      EXPECT_EQ(accord_work_status(work), ACCORD_WRONG_STATE);
      EXPECT_THAT(accord_last_error(), HasSubstr("accord_work_status"));
      EXPECT_EQ(accord_work_wait_for(work, -1, &done), ACCORD_INVALID_ARGUMENT);
      ASSERT_TRUE(is_ok(accord_send(comm, &go, 1, ACCORD_INT32, 1, nullptr)));
    }
    EXPECT_TRUE(is_ok(accord_work_wait(work)));
    EXPECT_TRUE(is_ok(accord_work_test(work, &done)));
    EXPECT_EQ(done, 1);
    EXPECT_TRUE(is_ok(accord_work_status(work)));
    EXPECT_EQ(value, 3);
    accord_work_free(work);
  });
}

TEST(CWorks, report_invalid_arguments_of_their_call) {
  run_c_ranks(1, [](accord_communicator_t* comm, int) {
    float value = 1;
    int32_t done = 0;
    accord_work_t* work = nullptr;
    accord_call_t call = call_on(ACCORD_CALL_BROADCAST, ACCORD_FLOAT32, &value);
    call.root = 1;
    ASSERT_TRUE(is_ok(accord_start(comm, &call, nullptr, &work)));
    EXPECT_EQ(accord_work_wait_for(work, kSecond, &done), ACCORD_INVALID_ARGUMENT);
    EXPECT_EQ(done, 1);
    EXPECT_EQ(accord_work_status(work), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("root 1"));
    accord_work_free(work);
  });
}

TEST(CWorks, communicators_and_stores_may_be_freed_in_any_order) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    testing::run_store_ranks(2, [&](accord_store_t* shared, int rank) {
      accord_store_t* store = nullptr;
      accord_communicator_t *comm = nullptr, *part = nullptr;
      accord_work_t* work = nullptr;
      std::vector<float> values(100000, 1);
      ASSERT_TRUE(is_ok(accord_prefix_store_create(shared, "mine", &store)));
      ASSERT_TRUE(is_ok(accord_communicator_create(store, rank, 2, nullptr, &comm)));
      ASSERT_TRUE(is_ok(accord_communicator_split(comm, 0, 0, "part", &part)));
      accord_call_t call = call_on(ACCORD_CALL_ALL_REDUCE, ACCORD_FLOAT32, values.data());
      call.input_count = call.output_count = values.size();
      ASSERT_TRUE(is_ok(accord_start(comm, &call, nullptr, &work)));
      const std::vector<std::function<void()>> ends = {[&] { accord_store_free(store); },
                                                       [&] { accord_communicator_free(comm); },
                                                       [&] { accord_communicator_free(part); },
                                                       [&] {
                                                         EXPECT_TRUE(is_ok(accord_work_wait(work)));
                                                         accord_work_free(work);
                                                       }};
      for (const int which : order) ends[static_cast<size_t>(which)]();
      EXPECT_EQ(std::count(values.begin(), values.end(), 2.0F), 100000);
    });
  } while (std::next_permutation(order.begin(), order.end()));
}

}  // namespace
}  // namespace accord
