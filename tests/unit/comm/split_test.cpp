// A rank is lost after publishing its address and before connecting, so that the remaining ranks cannot connect to
// each other either.
#include "comm/membership/split.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "comm/membership/bootstrap.hpp"
#include "comm/membership/gather_texts.hpp"
#include "comm/membership/listed_exchange.hpp"

namespace accord::comm {
namespace {

using ::testing::HasSubstr;

class LostWhileConnecting : public ::testing::TestWithParam<std::string> {
 protected:
  /// Rank 2 opens an endpoint, publishes its address with `publish` and drops the endpoint without connecting. Then its
  /// group detects that rank 2 is lost. The other ranks run `split`.
  void play(const std::function<Status(Group&, const std::string& mine)>& publish,
            const std::function<Status(Group&)>& split) {
    const std::shared_ptr<Store> store = make_memory_store();
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        const JoinRequest request{.rank = rank,
                                  .size = 3,
                                  .options = {.name = "world", .timeout = kTimeout, .transport = GetParam()},
                                  .deadline = Deadline::in(kTimeout)};
        const std::shared_ptr<Group> group = join(request, store_exchange(store, request)).value();
        if (rank == 2) {
          const auto lost = [&](std::string_view, const std::string& mine, const OnText&) {
            EXPECT_TRUE(publish(*group, mine).ok());
            return Status(StatusCode::kInternal, "gone");
          };
          EXPECT_EQ(connect(request, group->topology(), lost).status().code(), StatusCode::kInternal);
          group->abort("it is lost");
          return;
        }
        const Status status = split(*group);
        EXPECT_EQ(status.code(), StatusCode::kAborted) << status.to_string();
        EXPECT_EQ(status.ranks(), std::vector<Rank>{2}) << status.to_string();
        EXPECT_THAT(status.message(), HasSubstr("\"part\""));
      });
    for (std::thread& thread : threads) thread.join();
  }

  static constexpr Duration kTimeout = std::chrono::seconds(20);
};

TEST_P(LostWhileConnecting, a_split_by_ranks_names_only_the_lost_rank) {
  const std::vector<Rank> list = {0, 1, 2};
  play(
      [&](Group& group, const std::string& mine) {
        ListedExchange exchange(group, {.call = "split_ranks",
                                        .name = "part",
                                        .members = list,
                                        .terms = terms({.size = 3, .options = group.options()}),
                                        .deadline = Deadline::in(kTimeout)});
        return exchange(mine, [](Rank, const std::string&) { return Status(); });
      },
      [&](Group& group) { return split_by_ranks(group, list, {.name = "part"}).status(); });
}

TEST_P(LostWhileConnecting, a_split_by_color_names_only_the_lost_rank) {
  play(
      [&](Group& group, const std::string& mine) {
        const std::int64_t color_key_and_device[3] = {0, 0, 0};
        std::int64_t all[9];
        const Status published = group.run(
            Call::all_gather(ConstBuffer(color_key_and_device, 3, DType::kInt64), Buffer{all, 9, DType::kInt64}), {});
        return published.ok() ? gather_texts(group, mine, kTimeout).status() : published;
      },
      [&](Group& group) { return split_by_color(group, 0, 0, {.name = "part"}).status(); });
}

INSTANTIATE_TEST_SUITE_P(All, LostWhileConnecting, ::testing::Values("inproc", "shm"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace accord::comm
