// Invalid calls fail on all ranks, name the rank at fault, and leave the group usable. Overflow is a result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "accord/expert_parallel.hpp"
#include "conformance/expert/reference.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_thread_ranks;

CommunicatorOptions options() {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(60);
  options.transport = "inproc";
  return options;
}

ExpertGroupConfig config() {
  return {.experts = 4, .top_k = 2, .hidden = 3, .max_tokens_per_rank = 4, .dtype = DType::kFloat32};
}

void expect_error(const Status& status, StatusCode code, const std::string& text, std::vector<Rank> ranks) {
  EXPECT_EQ(status.code(), code) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr(text));
  EXPECT_EQ(status.ranks(), ranks);
}

ConstBuffer ids(const std::vector<std::int32_t>& list) { return {list.data(), list.size(), DType::kInt32}; }
Buffer f32(std::vector<float>& list) { return {list.data(), list.size(), DType::kFloat32, {}}; }

/// Runs `body` on each of `ranks` ranks with a group and a handle.
void with_group(const ExpertGroupConfig& config,
                const std::function<void(Communicator&, ExpertGroup&, ExpertHandle&)>& body, int ranks = 2) {
  run_thread_ranks(ranks, options(), [&](Communicator comm) {
    Result<ExpertGroup> group = ExpertGroup::create(comm, config);
    ASSERT_TRUE(group.ok()) << group.status().to_string();
    Result<ExpertHandle> handle = group->make_handle();
    ASSERT_TRUE(handle.ok());
    body(comm, *group, *handle);
  });
}

/// Makes one dispatch, which must succeed.
void expect_works(ExpertGroup& group, const ExpertHandle& handle) {
  const std::vector<std::int32_t> chosen = {0, 3};
  ASSERT_TRUE(group.prepare(handle, {.ids = ids(chosen)}).ok());
  std::vector<float> x(3, static_cast<float>(group.rank())), y(static_cast<std::size_t>(handle.recv_rows()) * 3);
  ASSERT_TRUE(group.dispatch(handle, {.tokens = f32(x), .recv_tokens = f32(y)}).ok());
  EXPECT_THAT(y, ElementsAre(0, 0, 0, 1, 1, 1));
}

TEST(ExpertCreate, an_invalid_field_is_named_on_all_ranks) {
  const auto with = [](auto change) {
    ExpertGroupConfig changed = config();
    change(changed);
    return changed;
  };
  const std::pair<ExpertGroupConfig, std::string> cases[] = {
      {with([](auto& c) { c.experts = 0; }), "experts is 0"},
      {with([](auto& c) { c.top_k = 5; }), "top_k is 5, it has to be 1 to 4"},
      {with([](auto& c) { c.hidden = -3; }), "hidden is -3"},
      {with([](auto& c) { c.max_tokens_per_rank = 0; }), "max_tokens_per_rank is 0"},
      {with([](auto& c) { c.max_tokens_per_rank = 1 << 30; }), "max_tokens_per_rank is 1073741824: with 2 ranks"},
      {with([](auto& c) { c.max_recv_rows = -1; }), "max_recv_rows is -1"},
      {with([](auto& c) { c.alignment = 0; }), "alignment is 0"},
      {with([](auto& c) { c.dtype = DType::kInt32; }), "dtype is int32, but rows must have a float dtype"},
      {with([](auto& c) { c.overflow = OverflowPolicy::kDropBySlot; }),
       "overflow is drop_by_slot, but without max_recv_rows"},
      {with([](auto& c) { c.experts = 5; }), "experts: 5 experts cannot be divided evenly among 2 ranks"},
      {with([](auto& c) {
         c.placement = {{0, 1, 2, 3}};
       }),
       "placement: there are lists for 1 ranks"},
      {with([](auto& c) { c.ranks_per_host = -1; }), "ranks_per_host is -1"}};
  for (const auto& test : cases)
    run_thread_ranks(2, options(), [&](Communicator comm) {
      // Only rank 1 makes the mistake.
      const Result<ExpertGroup> group = ExpertGroup::create(comm, comm.rank() == 1 ? test.first : config());
      ASSERT_FALSE(group.ok());
      expect_error(group.status(), StatusCode::kInvalidArgument, "rank 1: " + test.second, {1});
      EXPECT_TRUE(comm.barrier().ok());
      EXPECT_TRUE(ExpertGroup::create(comm, config()).ok());
    });
}

TEST(ExpertCreate, configurations_that_differ_are_a_mismatch_that_names_the_field) {
  run_thread_ranks(3, options(), [&](Communicator comm) {
    ExpertGroupConfig mine = config();
    mine.experts = 6;
    if (comm.rank() == 2) mine.alignment = 8;
    const Result<ExpertGroup> group = ExpertGroup::create(comm, mine);
    ASSERT_FALSE(group.ok());
    expect_error(group.status(), StatusCode::kMismatch, "alignment is 1 on rank 0 and 8 on rank 2", {2});
    mine.alignment = 1;
    mine.placement = {{0, 1, 2}, {3, 4}, {5}};
    if (comm.rank() == 1) mine.placement = {{0, 1}, {2, 3}, {4, 5}};
    const Result<ExpertGroup> other = ExpertGroup::create(comm, mine);
    ASSERT_FALSE(other.ok());
    expect_error(other.status(), StatusCode::kMismatch, "the placement of rank 1 differs from that of rank 0", {1});
  });
}

TEST(ExpertCreate, several_groups_and_kinds_of_layers_coexist) {
  with_group(config(), [](Communicator& comm, ExpertGroup& group, ExpertHandle& handle) {
    ExpertGroupConfig more = config();
    more.top_k = 1;
    more.experts = 2;
    Result<ExpertGroup> other = ExpertGroup::create(comm, more);
    ASSERT_TRUE(other.ok());
    const Result<ExpertHandle> narrow = group.make_handle({.top_k = 1});
    ASSERT_TRUE(narrow.ok());
    EXPECT_EQ(narrow->top_k(), 1);
    const std::vector<std::int32_t> one = {2}, two = {1, 2};
    ASSERT_TRUE(group.prepare(*narrow, {.ids = ids(one)}).ok());
    ASSERT_TRUE(group.prepare(handle, {.ids = ids(two)}).ok());
    EXPECT_EQ(narrow->recv_rows(), comm.rank() == 0 ? 0 : 2);
    EXPECT_EQ(handle.recv_rows(), 2);
    expect_error(other->prepare(handle, {.ids = ids(two)}), StatusCode::kInvalidArgument,
                 "prepare on group \"world.experts\": rank 0: handle 0 belongs to another group", {0});
    EXPECT_THAT(group.make_handle({.alignment = 4}).status().message(),
                HasSubstr("alignment is 4, it has to be 1 to the group's 1"));
    expect_works(group, handle);
  });
}

TEST(ExpertCalls, invalid_arguments_of_one_rank_fail_on_all_and_the_group_stays_usable) {
  with_group(config(), [](Communicator& comm, ExpertGroup& group, ExpertHandle& handle) {
    const bool wrong = comm.rank() == 1;
    const std::vector<std::int32_t> good = {0, 1}, odd = {0, 1, 2}, many(10, 0);
    const std::vector<float> floats(2);
    expect_error(group.prepare(handle, {.ids = ids(wrong ? odd : good)}), StatusCode::kInvalidArgument,
                 "rank 1: there are 3 ids, which is not a multiple of top_k 2", {1});
    expect_error(group.prepare(handle, {.ids = ids(wrong ? many : good)}), StatusCode::kInvalidArgument,
                 "rank 1: there are 5 tokens, but max_tokens_per_rank is 4", {1});
    expect_error(group.prepare(handle, {.ids = wrong ? ConstBuffer(floats.data(), 2, DType::kFloat32) : ids(good)}),
                 StatusCode::kInvalidArgument, "rank 1: ids are float32", {1});
    std::vector<float> x(3), y(12), short_row(2), row(3), weights(2);
    expect_error(group.dispatch(handle, {.tokens = f32(x), .recv_tokens = f32(y)}), StatusCode::kWrongState,
                 "rank 0: handle 0 is not prepared", {0});
    ASSERT_TRUE(group.prepare(handle, {.ids = ids(good)}).ok());  // rank 0 gets four rows, rank 1 none
    EXPECT_EQ(handle.recv_rows(), wrong ? 0 : 4);
    expect_error(group.dispatch(handle, {.tokens = f32(wrong ? short_row : x), .recv_tokens = f32(y)}),
                 StatusCode::kInvalidArgument, "rank 1: tokens has 2 elements, it has to have 1 x 3 = 3", {1});
    expect_error(group.dispatch(handle, {.tokens = f32(x), .recv_tokens = f32(wrong ? y : row)}),
                 StatusCode::kInvalidArgument, "rank 0: recv_tokens has 3 elements, it has to have at least 4 x 3 = 12",
                 {0});
    expect_error(group.dispatch(handle, {.tokens = f32(x), .recv_tokens = f32(wrong ? y : x)}),
                 StatusCode::kInvalidArgument, "rank 0: recv_tokens has 3", {0});
    expect_error(group.dispatch(handle, {.tokens = f32(x), .weights = f32(weights), .recv_tokens = f32(y)}),
                 StatusCode::kInvalidArgument, "rank 0: weights is given without recv_weights", {0});
    expect_error(group.dispatch(handle, {.tokens = f32(x), .scales = f32(weights), .recv_tokens = f32(y)}),
                 StatusCode::kInvalidArgument, "rank 0: scales are for float8 only, but tokens is float32", {0});
    const ConstBuffer wide(y.data(), 3, DType::kFloat64);
    expect_error(group.dispatch(handle, {.tokens = wrong ? wide : f32(x), .recv_tokens = f32(y)}),
                 StatusCode::kInvalidArgument,
                 "rank 1: tokens is float64; rows are floats, at most as wide as the group's float32", {1});
    expect_error(group.combine(handle, {.expert_out = f32(y), .result = {y.data(), 3, DType::kFloat32, {}}}),
                 StatusCode::kInvalidArgument, "rank 0: expert_out and result overlap", {0});
    expect_error(group.combine(handle, {.expert_out = f32(y), .result = {x.data(), 3, DType::kFloat64, {}}}),
                 StatusCode::kInvalidArgument, "rank 0: result is float64, which cannot hold sums of float32", {0});
    expect_works(group, handle);
  });
}

TEST(ExpertCalls, different_calls_are_a_mismatch_that_names_them) {
  with_group(config(), [](Communicator& comm, ExpertGroup& group, ExpertHandle& handle) {
    const std::vector<std::int32_t> chosen = {0, 3};
    ASSERT_TRUE(group.prepare(handle, {.ids = ids(chosen)}).ok());
    std::vector<float> x(3), y(6);
    expect_error(comm.rank() == 0 ? group.dispatch(handle, {.tokens = f32(x), .recv_tokens = f32(y)})
                                  : group.combine(handle, {.expert_out = f32(y), .result = f32(x)}),
                 StatusCode::kMismatch,
                 "rank 1 called combine of handle 0, prepared 1 times, float32 to float32, rank 0 called dispatch",
                 {1});
    const Result<ExpertHandle> other = group.make_handle();
    expect_error(
        group.prepare(comm.rank() == 0 ? handle : *other, {.ids = ids(chosen)}), StatusCode::kMismatch,
        "rank 1 called prepare of handle 1, prepared 0 times, rank 0 called prepare of handle 0, prepared 1 times",
        {1});
    expect_works(group, handle);
  });
}

TEST(ExpertCalls, a_rank_without_tokens_or_rows_may_omit_buffers) {
  with_group(config(), [](Communicator& comm, ExpertGroup& group, ExpertHandle& handle) {
    const bool has = comm.rank() == 0;
    const std::vector<std::int32_t> chosen = has ? std::vector<std::int32_t>{0, 1} : std::vector<std::int32_t>{};
    ASSERT_TRUE(group.prepare(handle, {.ids = ids(chosen)}).ok());
    std::vector<float> x(has ? 3 : 0, 4.0F), y(has ? 6 : 0), w(has ? 2 : 0, 0.5F), recv_w(has ? 2 : 0);
    const Status status = group.dispatch(
        handle, {.tokens = f32(x), .weights = f32(w), .recv_tokens = f32(y), .recv_weights = f32(recv_w)});
    ASSERT_TRUE(status.ok()) << status.to_string();
    if (has) {
      EXPECT_THAT(recv_w, ElementsAre(0.5F, 0.5F));
    }
  });
}

TEST(ExpertCalls, a_second_thread_is_rejected) {
  with_group(config(), [](Communicator& comm, ExpertGroup& group, ExpertHandle& handle) {
    if (comm.rank() == 0) {
      // The first thread waits in prepare until rank 1 arrives, which happens once this thread has been rejected.
      std::thread first([&] {
        const std::vector<std::int32_t> none;
        Status status;  // rejected itself while this thread is in a call
        do status = group.prepare(handle, {.ids = ids(none)});
        while (status.code() == StatusCode::kWrongState);
        EXPECT_TRUE(status.ok()) << status.to_string();
      });
      Status status;
      do status = group.make_handle().status();
      while (status.ok());
      EXPECT_EQ(status.code(), StatusCode::kWrongState);
      EXPECT_THAT(status.message(), HasSubstr("another thread is in a call"));
      ASSERT_TRUE(comm.barrier().ok());
      first.join();
    } else {
      ASSERT_TRUE(comm.barrier().ok());
      const std::vector<std::int32_t> none;
      EXPECT_TRUE(group.prepare(handle, {.ids = ids(none)}).ok());
    }
  });
}

TEST(ExpertCalls, closing_is_idempotent_and_does_not_affect_the_communicator) {
  with_group(config(), [](Communicator& comm, ExpertGroup& group, ExpertHandle& handle) {
    expect_works(group, handle);
    ASSERT_TRUE(comm.barrier().ok());
    group.close();
    group.close();
    const std::vector<std::int32_t> chosen = {0, 3};
    EXPECT_EQ(group.prepare(handle, {.ids = ids(chosen)}).code(), StatusCode::kClosed);
    EXPECT_TRUE(comm.barrier().ok());
  });
}

TEST(ExpertCalls, a_group_and_its_handles_may_outlive_the_communicator) {
  run_thread_ranks(2, options(), [&](Communicator comm) {
    std::optional<ExpertHandle> kept;
    {
      Result<ExpertGroup> group = ExpertGroup::create(comm, config());
      ASSERT_TRUE(group.ok());
      comm.close();
      kept = *group->make_handle();
      expect_works(*group, *kept);
    }
    EXPECT_EQ(kept->recv_rows(), 2);
  });
}

/// Room for 5 rows on each rank. The tests below choose only experts 0 and 1, both of rank 0.
ExpertGroupConfig tight(OverflowPolicy policy) {
  ExpertGroupConfig tight = config();
  tight.max_recv_rows = 5;
  tight.overflow = policy;
  return tight;
}

TEST(ExpertOverflow, fails_before_anything_is_moved_and_the_group_stays_usable) {
  with_group(tight(OverflowPolicy::kFail), [](Communicator&, ExpertGroup& group, ExpertHandle& handle) {
    const std::vector<std::int32_t> chosen = {0, 1, 0, 1, 0, 1, 0, 1};
    expect_error(group.prepare(handle, {.ids = ids(chosen)}), StatusCode::kResourceExhausted,
                 "rank 0 would get 16 rows; max_recv_rows is 5", {0});
    EXPECT_FALSE(handle.prepared());
    expect_works(group, handle);
  });
}

TEST(ExpertOverflow, drops_by_weight_the_same_list_on_all_ranks) {
  with_group(tight(OverflowPolicy::kDropByWeight), [](Communicator& comm, ExpertGroup& group, ExpertHandle& handle) {
    const std::vector<std::int32_t> chosen = {0, 1, 0, 1};
    // By (rank, token, k): 0.8 0.2 0.6 0.4 | 0.7 0.3 0.5 0.5. The three lowest are dropped.
    std::vector<float> weights =
        comm.rank() == 0 ? std::vector<float>{0.8F, 0.2F, 0.6F, 0.4F} : std::vector<float>{0.7F, 0.3F, 0.5F, 0.5F};
    expect_error(group.prepare(handle, {.ids = ids(chosen)}), StatusCode::kInvalidArgument,
                 "rank 0: overflow=drop_by_weight requires weights, but none were given", {0});
    ASSERT_TRUE(group.prepare(handle, {.ids = ids(chosen), .weights = f32(weights)}).ok());
    EXPECT_THAT(handle.dropped(), ElementsAre(ExpertChoice{0, 0, 1}, ExpertChoice{0, 1, 1}, ExpertChoice{1, 0, 1}));
    EXPECT_EQ(handle.ranks()[0].dropped, 2);
    EXPECT_EQ(handle.ranks()[0].recv_rows, 5);
    EXPECT_EQ(handle.ranks()[0].total_rows, 8);
    EXPECT_EQ(group.statistics().dropped, comm.rank() == 0 ? 2 : 1);
    // Sums are over the rows that were kept, and gradients of dropped choices are zero.
    const auto rows = static_cast<std::size_t>(handle.recv_rows());
    std::vector<float> y(3 * rows, 2.0F), result(6), grad_recv(rows, 1.0F), grad(4, 9.0F);
    ASSERT_TRUE(group.combine(handle, {.expert_out = f32(y), .result = f32(result)}).ok());
    EXPECT_THAT(result, comm.rank() == 0 ? ElementsAre(2, 2, 2, 2, 2, 2) : ElementsAre(2, 2, 2, 4, 4, 4));
    ASSERT_TRUE(group
                    .dispatch_backward(handle, {.grad = f32(y),
                                                .grad_recv_weights = f32(grad_recv),
                                                .grad_tokens = f32(result),
                                                .grad_weights = f32(grad)})
                    .ok());
    EXPECT_THAT(grad, comm.rank() == 0 ? ElementsAre(1, 0, 1, 0) : ElementsAre(1, 0, 1, 1));
  });
}

TEST(ExpertOverflow, drops_by_slot_rows_beyond_the_capacity) {
  with_group(tight(OverflowPolicy::kDropBySlot), [](Communicator& comm, ExpertGroup& group, ExpertHandle& handle) {
    const std::vector<std::int32_t> chosen = {0, 1, 0, 1};
    ASSERT_TRUE(group.prepare(handle, {.ids = ids(chosen)}).ok());
    EXPECT_THAT(handle.dropped(), ElementsAre(ExpertChoice{0, 1, 1}, ExpertChoice{1, 0, 1}, ExpertChoice{1, 1, 1}));
    if (comm.rank() == 0) {
      EXPECT_THAT(handle.counts(), ElementsAre(4, 1));
    }
    std::vector<float> x(6, 1.0F + static_cast<float>(comm.rank())), y(comm.rank() == 0 ? 15 : 0);
    ASSERT_TRUE(group.dispatch(handle, {.tokens = f32(x), .recv_tokens = f32(y)}).ok());
    if (comm.rank() == 0) {
      EXPECT_THAT(y, ElementsAre(1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 1, 1, 1));
    }
  });
}

TEST(ExpertStatistic, counts_rows_between_ranks_and_the_wait_for_each_peer) {
  with_group(config(), [](Communicator& comm, ExpertGroup& group, ExpertHandle& handle) {
    const std::vector<std::int32_t> chosen = {0, 3, 2, 3};
    ASSERT_TRUE(group.prepare(handle, {.ids = ids(chosen)}).ok());
    std::vector<std::int64_t> traffic(4), loads(4);
    handle.traffic(traffic);
    handle.loads(loads);
    EXPECT_THAT(traffic, ElementsAre(1, 3, 1, 3));
    EXPECT_THAT(loads, ElementsAre(2, 0, 2, 4));
    std::vector<float> x(6), y(static_cast<std::size_t>(handle.recv_rows()) * 3);
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));  // late on purpose
    ASSERT_TRUE(group.dispatch(handle, {.tokens = f32(x), .recv_tokens = f32(y)}).ok());
    const ExpertStatistics statistics = group.statistics();
    EXPECT_EQ(statistics.calls, 1);
    EXPECT_EQ(statistics.rows_sent, comm.rank() == 0 ? 3 : 1);
    EXPECT_EQ(statistics.rows_received, comm.rank() == 0 ? 1 : 3);
    EXPECT_EQ(statistics.bytes_sent, statistics.rows_sent * 12);
    if (comm.rank() == 0) {
      EXPECT_GE(statistics.wait_seconds[1], 0.02);
    }
    EXPECT_EQ(statistics.wait_seconds[static_cast<std::size_t>(comm.rank())], 0.0);
  });
}

/// The values that TransformerEngine's tests of expert parallelism use.
TEST(ExpertValues, match_transformer_engine) {
  constexpr int kHidden = 512, kTokens = 32, kTopK = 2;
  for (const int ranks : {2, 4}) {
    const int experts = 4 * ranks;
    ExpertGroupConfig config{.experts = experts,
                             .top_k = kTopK,
                             .hidden = kHidden,
                             .max_tokens_per_rank = 64,
                             .max_recv_rows = ranks * 64 * 2};
    with_group(
        config,
        [&](Communicator& comm, ExpertGroup& group, ExpertHandle& handle) {
          const int r = comm.rank();
          std::vector<std::int64_t> chosen;
          std::vector<std::uint16_t> x;
          const auto bf16 = [](float value) {
            return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
          };
          for (int t = 0; t < kTokens; ++t) {
            for (int k = 0; k < kTopK; ++k) chosen.push_back((r * kTokens * kTopK + t * kTopK + k) % experts);
            x.insert(x.end(), kHidden, bf16(static_cast<float>(r * kTokens + t + 1) / 256));
          }
          ASSERT_TRUE(group.prepare(handle, {.ids = {chosen.data(), chosen.size(), DType::kInt64}}).ok());
          for (const std::int64_t count : handle.counts()) EXPECT_EQ(count, ranks * kTokens * kTopK / experts);
          const auto rows = static_cast<std::size_t>(handle.recv_rows());
          std::vector<std::uint16_t> recv(rows * kHidden), result(x.size());
          std::vector<float> weights(chosen.size(), 1.0F / kTopK), recv_weights(rows);
          const auto buffer = [](std::vector<std::uint16_t>& list) {
            return Buffer{list.data(), list.size(), DType::kBFloat16, {}};
          };
          ASSERT_TRUE(group
                          .dispatch(handle, {.tokens = buffer(x),
                                             .weights = f32(weights),
                                             .recv_tokens = buffer(recv),
                                             .recv_weights = f32(recv_weights)})
                          .ok());
          for (const float weight : recv_weights) ASSERT_EQ(weight, 0.5F);
          std::vector<ExpertChoice> sources(rows);
          handle.sources(sources);
          for (std::size_t slot = 0; slot < rows; ++slot)
            ASSERT_EQ(recv[slot * kHidden + 7],
                      bf16(static_cast<float>(sources[slot].rank * kTokens + sources[slot].token + 1) / 256));
          // The experts change nothing, so the sum is top_k times the token.
          ASSERT_TRUE(group.combine(handle, {.expert_out = buffer(recv), .result = buffer(result)}).ok());
          for (int t = 0; t < kTokens; ++t)
            ASSERT_EQ(result[static_cast<std::size_t>(t) * kHidden + 511],
                      bf16(static_cast<float>(r * kTokens + t + 1) / 128));
        },
        ranks);
  }
}

}  // namespace
}  // namespace accord
