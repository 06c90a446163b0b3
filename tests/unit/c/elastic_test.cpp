// Elastic groups as C handles. tests/unit/elastic has the tests of the protocol.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "unit/c/c_ranks.hpp"

namespace accord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::is_ok;

constexpr int64_t kMinute = 60000000000;

class CElasticGroups : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(is_ok(accord_memory_store_create(&store_)));
    options_.form_timeout_ns = options_.last_call_ns = kMinute;
  }
  void TearDown() override { accord_store_free(store_); }

  accord_elastic_group_t* open() {
    accord_elastic_group_t* group = nullptr;
    EXPECT_TRUE(is_ok(accord_elastic_group_open(store_, &options_, &group)));
    return group;
  }

  /// Each group forms, counts the ranks with an all_reduce, and calls `body` with its communicator.
  static void form_all(const std::vector<accord_elastic_group_t*>& groups,
                       const std::function<void(accord_elastic_group_t*, accord_communicator_t*)>& body) {
    std::vector<std::thread> threads;
    for (accord_elastic_group_t* group : groups)
      threads.emplace_back([&, group] {
        accord_communicator_t* communicator = nullptr;
        ASSERT_TRUE(is_ok(accord_elastic_group_form(group, &communicator)));
        int32_t ranks = 1;
        EXPECT_TRUE(is_ok(accord_all_reduce(communicator, &ranks, &ranks, 1, ACCORD_INT32, ACCORD_SUM, nullptr)));
        EXPECT_EQ(ranks, static_cast<int32_t>(groups.size()));
        body(group, communicator);
        accord_communicator_free(communicator);
      });
    for (std::thread& thread : threads) thread.join();
  }

  accord_store_t* store_ = nullptr;
  accord_elastic_options_t options_ = ACCORD_ELASTIC_OPTIONS_INIT;
};

TEST_F(CElasticGroups, go_on_without_a_member_until_the_job_is_finished) {
  options_.max_ranks = 3;
  accord_elastic_group_t *first = open(), *second = open(), *third = open();
  form_all({first, second, third}, [&](accord_elastic_group_t* group, accord_communicator_t* communicator) {
    int32_t rank = -1, source = -1, waits = -1;
    EXPECT_TRUE(is_ok(accord_communicator_rank(communicator, &rank)));
    EXPECT_TRUE(is_ok(accord_elastic_group_most_advanced(group, 10 * rank, &source)));
    EXPECT_EQ(source, 2);
    EXPECT_TRUE(is_ok(accord_elastic_group_others_wait(group, &waits)));
    EXPECT_EQ(waits, 0);
  });
  accord_elastic_group_free(third);
  form_all({first, second}, [&](accord_elastic_group_t* group, accord_communicator_t*) {
    int64_t round = 0;
    EXPECT_TRUE(is_ok(accord_elastic_group_round(group, &round)));
    EXPECT_EQ(round, 2);
  });
  EXPECT_TRUE(is_ok(accord_elastic_group_finish(first)));
  for (accord_elastic_group_t* group : {first, second}) {
    auto* communicator = reinterpret_cast<accord_communicator_t*>(group);  // anything but null
    EXPECT_TRUE(is_ok(accord_elastic_group_form(group, &communicator)));
    EXPECT_EQ(communicator, nullptr);
    accord_elastic_group_free(group);
  }
}

TEST_F(CElasticGroups, tell_a_member_that_another_one_waits) {
  options_.max_ranks = 2;
  options_.last_call_ns = 1;
  accord_elastic_group_t *first = open(), *second = nullptr;
  std::thread newcomer;
  form_all({first}, [&](accord_elastic_group_t* group, accord_communicator_t*) {
    second = open();
    newcomer = std::thread([&] { form_all({second}, [](accord_elastic_group_t*, accord_communicator_t*) {}); });
    int32_t waits = 0;
    while (waits == 0) ASSERT_TRUE(is_ok(accord_elastic_group_others_wait(group, &waits)));
    EXPECT_TRUE(is_ok(accord_elastic_group_close(group)));  // so that the other one forms a group of its own
    EXPECT_TRUE(is_ok(accord_elastic_group_close(group)));
    accord_communicator_t* communicator = nullptr;
    EXPECT_EQ(accord_elastic_group_form(group, &communicator), ACCORD_ABORTED);
  });
  newcomer.join();
  accord_elastic_group_free(first);
  accord_elastic_group_free(second);
  accord_elastic_group_free(nullptr);
}

TEST_F(CElasticGroups, have_communicators_that_outlive_their_handle) {
  accord_elastic_group_t* group = open();
  options_.last_call_ns = 1;
  accord_elastic_group_free(group);
  group = open();
  accord_communicator_t* communicator = nullptr;
  ASSERT_TRUE(is_ok(accord_elastic_group_form(group, &communicator)));
  accord_elastic_group_free(group);
  EXPECT_NE(accord_barrier(communicator, nullptr), ACCORD_OK);
  accord_communicator_free(communicator);
}

TEST_F(CElasticGroups, refuse_wrong_options_by_name) {
  const auto refusal = [&] {
    accord_elastic_group_t* group = nullptr;
    EXPECT_EQ(accord_elastic_group_open(store_, &options_, &group), ACCORD_INVALID_ARGUMENT);
    EXPECT_EQ(group, nullptr);
    return std::string(accord_last_error());
  };
  options_.last_call_ns = -1;
  EXPECT_THAT(refusal(), HasSubstr("last_call_ns is -1"));
  options_.last_call_ns = 0;
  options_.form_timeout_ns = -2;
  EXPECT_THAT(refusal(), HasSubstr("form_timeout_ns is -2"));
  options_.form_timeout_ns = 0;
  options_.min_ranks = 3;
  options_.max_ranks = 2;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("elastic"), HasSubstr("3"), HasSubstr("2")));
  options_.min_ranks = -1;
  EXPECT_THAT(refusal(), HasSubstr("-1"));
  options_.min_ranks = 0;
  accord_communicator_options_t communicator = ACCORD_COMMUNICATOR_OPTIONS_INIT;
  communicator.timeout_ns = -3;
  options_.communicator = &communicator;
  EXPECT_THAT(refusal(), HasSubstr("timeout_ns is -3"));
  communicator.timeout_ns = 0;
  communicator.hints = "pigeon=1";
  EXPECT_THAT(refusal(), HasSubstr("pigeon"));
}

TEST_F(CElasticGroups, need_the_numbers_of_the_environment) {
  accord_elastic_group_t* group = nullptr;
  EXPECT_EQ(accord_elastic_group_from_environment(nullptr, &group), ACCORD_INVALID_ARGUMENT);
  EXPECT_EQ(group, nullptr);
  EXPECT_THAT(accord_last_error(), HasSubstr("ACCORD_ELASTIC"));
}

}  // namespace
}  // namespace accord
