// Expert parallelism through the C interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "unit/c/c_ranks.hpp"

namespace accord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::is_ok;
using testing::last_error_ranks;
using testing::run_c_ranks;

accord_expert_config_t config() {
  accord_expert_config_t config = ACCORD_EXPERT_CONFIG_INIT;
  config.experts = 4;
  config.top_k = 2;
  config.hidden = 3;
  config.max_tokens_per_rank = 4;
  config.dtype = ACCORD_FLOAT32;
  return config;
}

/// Runs `body` on two ranks with a group and a handle.
void with_group(
    const accord_expert_config_t& config,
    const std::function<void(accord_communicator_t*, accord_expert_group_t*, accord_expert_handle_t*, int)>& body) {
  run_c_ranks(2, [&](accord_communicator_t* communicator, int rank) {
    accord_expert_group_t* group = nullptr;
    ASSERT_TRUE(is_ok(accord_expert_group_create(communicator, &config, &group)));
    accord_expert_handle_t* handle = nullptr;
    ASSERT_TRUE(is_ok(accord_expert_handle_create(group, nullptr, &handle)));
    body(communicator, group, handle, rank);
    accord_expert_group_free(group);  // handles may outlive the group
    accord_expert_handle_free(handle);
  });
}

accord_expert_routing_t routing_of(const std::vector<int64_t>& ids) {
  accord_expert_routing_t routing = ACCORD_EXPERT_ROUTING_INIT;
  routing.ids = ids.data();
  routing.tokens = static_cast<int64_t>(ids.size() / 2);
  return routing;
}

TEST(CExperts, rows_are_sent_to_their_experts_and_returned) {
  with_group(config(), [](accord_communicator_t* communicator, accord_expert_group_t* group,
                          accord_expert_handle_t* handle, int rank) {
    accord_window_t* window = nullptr;
    ASSERT_TRUE(is_ok(accord_window_create(communicator, 4096, 0, &window)));
    ASSERT_TRUE(is_ok(accord_expert_group_add_window(group, window)));
    // Rank 0: tokens to {0, 3} and {2, none}; rank 1: one token to {3, 1}.
    const std::vector<int64_t> ids = rank == 0 ? std::vector<int64_t>{0, 3, 2, -1} : std::vector<int64_t>{3, 1};
    const accord_expert_routing_t routing = routing_of(ids);
    ASSERT_TRUE(is_ok(accord_expert_prepare(group, handle, &routing)));
    accord_expert_map_t map = ACCORD_EXPERT_MAP_INIT;
    ASSERT_TRUE(is_ok(accord_expert_handle_map(handle, &map)));
    EXPECT_EQ(map.tokens, rank == 0 ? 2 : 1);
    EXPECT_EQ(map.recv_rows, rank == 0 ? 2 : 3);
    EXPECT_EQ(map.total_rows, map.recv_rows);
    EXPECT_EQ(map.local_experts, 2);
    EXPECT_EQ(map.top_k, 2);
    EXPECT_EQ(map.generation, 1U);
    accord_expert_map_t again = ACCORD_EXPERT_MAP_INIT;
    ASSERT_TRUE(is_ok(accord_expert_prepare(group, handle, &routing)));
    ASSERT_TRUE(is_ok(accord_expert_handle_map(handle, &again)));
    EXPECT_EQ(again.generation, 1U);
    EXPECT_EQ(again.fingerprint, map.fingerprint);
    int64_t counts[2];
    ASSERT_TRUE(is_ok(accord_expert_handle_counts(handle, counts, nullptr, 2)));
    EXPECT_THAT(counts, rank == 0 ? ElementsAre(1, 1) : ElementsAre(1, 2));

    void *tokens = nullptr, *slots = nullptr;
    ASSERT_TRUE(is_ok(accord_window_allocate(window, 6 * sizeof(float), 0, &tokens)));
    ASSERT_TRUE(is_ok(accord_window_allocate(window, 9 * sizeof(float), 0, &slots)));
    auto* const x = static_cast<float*>(tokens);
    auto* const y = static_cast<float*>(slots);
    for (int i = 0; i < 3 * map.tokens; ++i) x[i] = static_cast<float>(10 * rank + i / 3 + 1);
    std::vector<float> weights = rank == 0 ? std::vector<float>{0.25F, 0.75F, 0.5F, 9} : std::vector<float>{1, 2};
    std::vector<float> recv_weights(3);
    accord_expert_rows_t rows = ACCORD_EXPERT_ROWS_INIT;
    rows.tokens = tokens;
    rows.slots = slots;
    rows.weights = weights.data();
    rows.recv_weights = recv_weights.data();
    rows.dtype = ACCORD_FLOAT32;
    rows.recv_capacity = 3;
    ASSERT_TRUE(is_ok(accord_expert_dispatch(group, handle, &rows)));
    EXPECT_THAT((std::vector<float>{y[0], y[3], y[6]}),
                rank == 0 ? ElementsAre(1.0F, 11.0F, 0.0F) : ElementsAre(2.0F, 1.0F, 11.0F));
    EXPECT_THAT(recv_weights, rank == 0 ? ElementsAre(0.25F, 2.0F, 0.0F) : ElementsAre(0.5F, 0.75F, 1.0F));

    rows.recv_weights = nullptr;
    ASSERT_TRUE(is_ok(accord_expert_combine(group, handle, &rows)));
    EXPECT_EQ(x[0], rank == 0 ? 1.0F : 33.0F);  // 1 (0.25 + 0.75); 11 (1 + 2)
    rows.weights = nullptr;
    ASSERT_TRUE(is_ok(accord_expert_dispatch_backward(group, handle, &rows)));
    EXPECT_EQ(x[2], rank == 0 ? 2.0F : 22.0F);
    ASSERT_TRUE(is_ok(accord_expert_combine_backward(group, handle, &rows)));
    EXPECT_EQ(y[3], rank == 0 ? 22.0F : 2.0F);

    std::vector<accord_expert_choice_t> sources(static_cast<size_t>(map.recv_rows));
    ASSERT_TRUE(is_ok(accord_expert_handle_sources(handle, sources.data(), sources.size())));
    EXPECT_EQ(sources[1].rank, rank == 0 ? 1 : 0);
    EXPECT_EQ(sources[1].token, 0);
    EXPECT_EQ(sources[1].k, 1);
    std::vector<int32_t> to(ids.size()), at(ids.size());
    ASSERT_TRUE(is_ok(accord_expert_handle_slots(handle, to.data(), at.data(), ids.size())));
    if (rank == 0) {
      EXPECT_THAT(to, ElementsAre(0, 1, 1, -1));
      EXPECT_THAT(at, ElementsAre(0, 1, 0, -1));
    }
    accord_expert_statistics_t statistics = ACCORD_EXPERT_STATISTICS_INIT;
    ASSERT_TRUE(is_ok(accord_expert_group_statistics(group, &statistics)));
    EXPECT_EQ(statistics.calls, 4);
    EXPECT_EQ(statistics.bytes_sent, statistics.rows_sent * 12);
    double waits[2] = {-1, -1};
    ASSERT_TRUE(is_ok(accord_expert_group_waits(group, waits, 2)));
    EXPECT_EQ(waits[rank], 0.0);
    EXPECT_GE(waits[1 - rank], 0.0);
    ASSERT_TRUE(is_ok(accord_barrier(communicator, nullptr)));
    accord_window_free(window);
  });
}

TEST(CExperts, dropped_rows_are_reported) {
  accord_expert_config_t tight = config();
  tight.max_recv_rows = 2;
  tight.overflow = ACCORD_OVERFLOW_DROP_BY_WEIGHT;
  with_group(tight, [](accord_communicator_t*, accord_expert_group_t* group, accord_expert_handle_t* handle, int rank) {
    const std::vector<int64_t> ids = {0, 1};
    const std::vector<float> weights = rank == 0 ? std::vector<float>{0.9F, 0.1F} : std::vector<float>{0.6F, 0.4F};
    accord_expert_routing_t routing = routing_of(ids);
    routing.weights = weights.data();
    ASSERT_TRUE(is_ok(accord_expert_prepare(group, handle, &routing)));
    accord_expert_map_t map = ACCORD_EXPERT_MAP_INIT;
    ASSERT_TRUE(is_ok(accord_expert_handle_map(handle, &map)));
    ASSERT_EQ(map.dropped, 2);
    accord_expert_choice_t dropped[2];
    ASSERT_TRUE(is_ok(accord_expert_handle_dropped(handle, dropped, 2)));
    EXPECT_EQ(dropped[0].rank * 100 + dropped[0].token * 10 + dropped[0].k, 1);
    EXPECT_EQ(dropped[1].rank * 100 + dropped[1].token * 10 + dropped[1].k, 101);
    accord_expert_rank_counts_t ranks[2];
    ASSERT_TRUE(is_ok(accord_expert_handle_ranks(handle, ranks, 2)));
    EXPECT_EQ(ranks[0].recv_rows, 2);
    EXPECT_EQ(ranks[0].total_rows, 4);
    EXPECT_EQ(ranks[1].dropped, 1);
    EXPECT_EQ(accord_expert_handle_dropped(handle, dropped, 1), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("count is 1, it has to be 2"));
  });
}

TEST(CExperts, placements_are_concatenated_lists) {
  const int32_t placement[] = {0, 3, 1, 2, 3}, counts[] = {2, 3};
  accord_expert_config_t own = config();
  own.placement = placement;
  own.placement_counts = counts;
  with_group(own, [](accord_communicator_t*, accord_expert_group_t* group, accord_expert_handle_t* handle, int rank) {
    const std::vector<int64_t> ids = {3, 1};
    const accord_expert_routing_t routing = routing_of(ids);
    ASSERT_TRUE(is_ok(accord_expert_prepare(group, handle, &routing)));
    std::vector<int64_t> rows(rank == 0 ? 2 : 3);
    ASSERT_TRUE(is_ok(accord_expert_handle_counts(handle, nullptr, rows.data(), rows.size())));
    if (rank == 0)
      EXPECT_THAT(rows, ElementsAre(0, 1));  // token 0 of rank 0 goes to replica 0
    else
      EXPECT_THAT(rows, ElementsAre(2, 0, 1));
  });
  const double loads[] = {9, 1, 1, 1};
  int32_t balanced[6];
  ASSERT_TRUE(is_ok(accord_balance_experts(loads, 4, 2, 3, balanced)));
  EXPECT_THAT(balanced, ElementsAre(0, 0, 3, 0, 1, 2));
  EXPECT_EQ(accord_balance_experts(loads, 4, 2, 1, balanced), ACCORD_INVALID_ARGUMENT);
  EXPECT_EQ(accord_balance_experts(nullptr, 4, 2, 3, balanced), ACCORD_INVALID_ARGUMENT);
}

TEST(CExperts, invalid_arguments_are_rejected) {
  with_group(config(), [](accord_communicator_t* communicator, accord_expert_group_t* group,
                          accord_expert_handle_t* handle, int rank) {
    accord_expert_map_t map = ACCORD_EXPERT_MAP_INIT;
    EXPECT_EQ(accord_expert_handle_map(handle, &map), ACCORD_WRONG_STATE);
    EXPECT_EQ(accord_expert_dispatch(group, handle, nullptr), ACCORD_INVALID_ARGUMENT);
    accord_expert_rows_t rows = ACCORD_EXPERT_ROWS_INIT;
    EXPECT_EQ(accord_expert_dispatch(group, handle, &rows), ACCORD_WRONG_STATE);
    EXPECT_THAT(accord_last_error(), HasSubstr("rank 0: handle 0 is not prepared"));
    EXPECT_THAT(last_error_ranks(), ElementsAre(0));
    const std::vector<int64_t> ids = {0, 1};
    const accord_expert_routing_t routing = routing_of(ids);
    ASSERT_TRUE(is_ok(accord_expert_prepare(group, handle, &routing)));
    EXPECT_EQ(accord_expert_dispatch(group, handle, &rows), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("dtype 0 is not defined in accord.h"));
    float x[3] = {1, 2, 3}, y[12];
    rows.dtype = ACCORD_FLOAT32;
    rows.tokens = x;
    rows.slots = y;
    rows.recv_capacity = 3;
    EXPECT_EQ(accord_expert_dispatch(group, handle, &rows), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("rank 0: recv_tokens has 9 elements, it has to have at least 4 x 3"));
    // A mistake that C detects on one rank only is reported on the others as well.
    rows.recv_capacity = 4;
    rows.dtype = rank == 1 ? accord_dtype_t{} : ACCORD_FLOAT32;
    EXPECT_EQ(accord_expert_dispatch(group, handle, &rows), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("dtype 0 is not defined in accord.h"));
    EXPECT_EQ(std::string(accord_last_error()).find("rank 1: ") != std::string::npos, rank == 0);
    rows.dtype = ACCORD_FLOAT32;
    EXPECT_EQ(accord_expert_dispatch(group, handle, rank == 1 ? nullptr : &rows), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("accord_expert_dispatch: rows is null"));
    EXPECT_EQ(accord_expert_prepare(group, handle, rank == 0 ? nullptr : &routing), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("accord_expert_prepare: routing is null"));
    ASSERT_TRUE(is_ok(accord_expert_prepare(group, handle, &routing)));
    EXPECT_TRUE(is_ok(accord_expert_dispatch(group, handle, &rows)));
    accord_expert_group_t* other = nullptr;
    accord_expert_config_t wrong = config();
    wrong.overflow = 7;
    EXPECT_EQ(accord_expert_group_create(communicator, &wrong, &other), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("overflow 7 is not defined in accord.h, expected 0 to 2"));
    wrong.overflow = rank == 1 ? 7 : 0;
    EXPECT_EQ(accord_expert_group_create(communicator, &wrong, &other), ACCORD_INVALID_ARGUMENT);
    EXPECT_THAT(accord_last_error(), HasSubstr("rank 1: accord_expert_group_create: overflow 7"));
    wrong = config();
    wrong.top_k = rank == 1 ? 9 : 2;
    EXPECT_EQ(accord_expert_group_create(communicator, &wrong, &other), ACCORD_INVALID_ARGUMENT);
    EXPECT_EQ(other, nullptr);
    EXPECT_THAT(accord_last_error(), HasSubstr("rank 1: top_k is 9"));
    accord_expert_layer_t layer = ACCORD_EXPERT_LAYER_INIT;
    layer.top_k = 3;
    accord_expert_handle_t* none = nullptr;
    EXPECT_EQ(accord_expert_handle_create(group, &layer, &none), ACCORD_INVALID_ARGUMENT);
    EXPECT_TRUE(is_ok(accord_expert_group_close(group)));
    EXPECT_TRUE(is_ok(accord_expert_group_close(group)));
    EXPECT_EQ(accord_expert_prepare(group, handle, &routing), ACCORD_CLOSED);
    EXPECT_TRUE(is_ok(accord_barrier(communicator, nullptr)));
  });
}

}  // namespace
}  // namespace accord
