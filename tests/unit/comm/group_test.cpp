// Races between a peer's failure and its leaving, played out step by step over links whose news arrives when the test
// decides.
#include "comm/group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>

#include "transport/mapped_link.hpp"

namespace accord::comm {
namespace {

using ::testing::HasSubstr;
using transport::PeerState;

class OwnedWindow final : public transport::Endpoint {
 public:
  explicit OwnedWindow(std::size_t bytes) : memory_(bytes / sizeof(std::uint64_t)) {}
  std::span<std::byte> window() const override {
    return std::as_writable_bytes(std::span(const_cast<std::vector<std::uint64_t>&>(memory_)));
  }
  std::string descriptor() const override { return ""; }
  Result<std::vector<std::unique_ptr<transport::Link>>> connect(std::span<const transport::PeerDescriptor>,
                                                                Deadline) override {
    return Status(StatusCode::kUnsupported, "the test has connected it");
  }

 private:
  std::vector<std::uint64_t> memory_;
};

/// Calls `poll` for the peer's state whenever the group queries the link.
class WatchedLink final : public transport::MappedLink {
 public:
  WatchedLink(Rank peer, std::span<std::byte> window, std::function<PeerState()> look)
      : MappedLink(peer, window), poll_(std::move(look)) {}
  PeerState peer_state() const override { return poll_(); }
  int liveness_fd() const override { return -1; }
  PeerState update_peer_state() override { return poll_(); }

 private:
  std::function<PeerState()> poll_;
};

PeerState alive(Rank) { return PeerState::kAlive; }

/// All ranks of one group. `poll_[r]` returns the state of a peer as rank r sees it.
class WatchedGroup : public ::testing::Test {
 protected:
  explicit WatchedGroup(int size, GroupHints hints = {}) : poll_(static_cast<std::size_t>(size), alive) {
    const topology::Place place = topology::this_place().value();
    const exec::WindowLayout layout(size, 4096);
    std::vector<std::unique_ptr<OwnedWindow>> windows;
    std::vector<std::span<std::byte>> memory;
    for (int rank = 0; rank < size; ++rank) {
      windows.push_back(std::make_unique<OwnedWindow>(layout.bytes()));
      memory.push_back(windows.back()->window());
    }
    for (Rank rank = 0; rank < size; ++rank) {
      std::vector<std::unique_ptr<transport::Link>> links(static_cast<std::size_t>(size));
      for (Rank peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        links[peer] =
            std::make_unique<WatchedLink>(peer, memory[peer], [this, rank, peer] { return poll_[rank](peer); });
      }
      groups_.push_back(
          Group::create(Membership{.rank = rank,
                                   .topology = topology::Topology(std::vector(static_cast<std::size_t>(size), place)),
                                   .selector = plan::Selector::create("").value(),
                                   .layout = layout,
                                   .endpoint = std::move(windows[rank]),
                                   .links = std::move(links)},
                        {.name = "tp", .timeout = std::chrono::seconds(30), .hints = hints})
              .value());
    }
  }

  std::vector<std::function<PeerState(Rank peer)>> poll_;
  std::vector<std::shared_ptr<Group>> groups_;
};

class GroupOfTwo : public WatchedGroup {
 protected:
  GroupOfTwo() : WatchedGroup(2) {}
};

class GroupOfThree : public WatchedGroup {
 protected:
  GroupOfThree() : WatchedGroup(3) {}
};

TEST_F(GroupOfThree, a_peer_that_left_after_its_part_is_not_a_failure_while_another_is_missing) {
  const auto reduce = [this](Rank rank) {
    float value = static_cast<float>(rank + 1);
    const Buffer buffer{&value, 1, DType::kFloat32};
    const Status status = groups_[rank]->run(Call::reduce(buffer, buffer, ReduceOp::kSum, 0), {});
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.to_string();
    return value;
  };
  std::vector<bool> reported(3, false);
  poll_[0] = [&](Rank peer) {
    if (!reported[peer]) reduce(peer);
    reported[peer] = true;
    return peer == 1 ? PeerState::kLeft : PeerState::kAlive;
  };
  EXPECT_EQ(reduce(0), 1 + 2 + 3);
  EXPECT_TRUE(reported[1] && reported[2]);
}

TEST_F(GroupOfTwo, a_peer_that_left_after_its_part_between_two_polls_is_not_a_failure) {
  int polls = 0;
  poll_[0] = [&](Rank) {
    if (++polls == 1) {
      EXPECT_TRUE(groups_[1]->run({.collective = Collective::kBarrier}, {}).ok());
    }
    return PeerState::kLeft;
  };
  const Status status = groups_[0]->run({.collective = Collective::kBarrier}, {});
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(polls, 1);
}

TEST_F(GroupOfTwo, a_peer_that_aborts_and_leaves_between_two_polls_has_aborted) {
  poll_[0] = [&](Rank) {
    groups_[1]->abort("the loss is NaN");
    return PeerState::kLeft;
  };
  const Status status = groups_[0]->run({.collective = Collective::kBarrier}, {});
  EXPECT_EQ(status.code(), StatusCode::kAborted) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("the loss is NaN"));
  EXPECT_EQ(groups_[0]->state().status().code(), StatusCode::kAborted) << "and so for all later calls";
}

TEST_F(GroupOfTwo, a_peer_that_aborts_and_dies_has_aborted) {
  groups_[1]->abort("the loss is NaN");
  poll_[0] = [](Rank) { return PeerState::kLost; };
  groups_[0]->state().on_peer_change(1);
  EXPECT_EQ(groups_[0]->state().status().code(), StatusCode::kAborted) << groups_[0]->state().status().to_string();
}

TEST_F(GroupOfTwo, an_alarm_without_a_notice_is_a_failure) {
  ASSERT_TRUE(groups_[1]->links()[0]->signal(exec::WindowLayout::alarm(), 1).ok());
  ASSERT_FALSE(groups_[0]->state().healthy());
  const Status status = groups_[0]->run({.collective = Collective::kBarrier}, {});
  EXPECT_EQ(status.code(), StatusCode::kInternal) << status.to_string();
  EXPECT_THAT(status.message(), HasSubstr("\"tp\""));
}

TEST_F(GroupOfThree, a_notified_rank_forwards_a_failure_to_ranks_that_were_not_reached) {
  poll_[2] = [](Rank peer) { return peer == 1 ? PeerState::kLost : PeerState::kAlive; };
  groups_[2]->abort("the loss is NaN");
  ASSERT_TRUE(groups_[1]->state().healthy());
  EXPECT_EQ(groups_[0]->run({.collective = Collective::kBarrier}, {}).code(), StatusCode::kAborted);
  ASSERT_FALSE(groups_[1]->state().healthy());
  const Status status = groups_[1]->run({.collective = Collective::kBarrier}, {});
  EXPECT_EQ(status.code(), StatusCode::kAborted) << status.to_string();
  EXPECT_EQ(status.ranks(), std::vector<Rank>{2});
  EXPECT_THAT(status.message(),
              HasSubstr("rank 0 reported: rank 2 reported: rank 2 aborted group \"tp\": the loss is NaN"));
}

// Once a call has ended, the caller may write to its buffers, from which peers still read.
TEST_F(GroupOfTwo, no_call_fails_before_the_peers_are_notified) {
  std::future<bool> peer_was_notified;
  poll_[0] = [&](Rank) {
    if (!peer_was_notified.valid()) {
      peer_was_notified = std::async(std::launch::async, [&] {
        EXPECT_EQ(groups_[0]->run({.collective = Collective::kBarrier}, {}).code(), StatusCode::kAborted);
        return !groups_[1]->state().healthy();
      });
      peer_was_notified.wait_for(std::chrono::milliseconds(100));  // it may end only after this poll
    }
    return PeerState::kAlive;
  };
  groups_[0]->abort("the loss is NaN");
  EXPECT_TRUE(peer_was_notified.get());
}

class HintedGroup : public WatchedGroup, public ::testing::WithParamInterface<WaitPolicy> {
 protected:
  HintedGroup() : WatchedGroup(2, {.wait = GetParam()}) {}
};

TEST_P(HintedGroup, uses_the_given_wait_policy_whatever_the_number_of_cores) {
  EXPECT_EQ(groups_[0]->wait_policy(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Group, HintedGroup, ::testing::Values(WaitPolicy::kSpin, WaitPolicy::kYield));

}  // namespace
}  // namespace accord::comm
