// The process that decides, the processes that a group waits for, and its members.
#include "elastic/decision.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace accord::elastic {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = Decision::Kind;

/// Processes 1 to `ids`, all of which wait unless said otherwise.
struct Scene {
  Round latest = {};
  std::int64_t ids = 4;
  std::map<std::int64_t, Presence> presence = {};
  std::set<std::int64_t> gone = {};
  std::set<std::int64_t> silent = {};
  int min_ranks = 1, max_ranks = 100;
  bool last_call_is_over = true, patience_is_over = false;

  Situation of(std::int64_t me) const {
    return {.latest = latest,
            .me = me,
            .ids = ids,
            .min_ranks = min_ranks,
            .max_ranks = max_ranks,
            .last_call_is_over = last_call_is_over,
            .patience_is_over = patience_is_over,
            .presence =
                [this](std::int64_t id) {
                  const auto found = presence.find(id);
                  return found == presence.end() ? Presence::kWaiting : found->second;
                },
            .life =
                [this](std::int64_t id) {
                  return gone.contains(id) ? Life::kGone : silent.contains(id) ? Life::kUnknown : Life::kAlive;
                }};
  }
  Decision decision(std::int64_t me) const { return decide(of(me)); }
};

Round round_of(std::vector<std::int64_t> members, std::int64_t ids) {
  return {.number = 3, .uuid = "u", .members = std::move(members), .handles = {}, .others = {}, .ids = ids};
}

TEST(Decision, TheFirstProcessLeadsTheFirstRound) {
  const Scene scene;
  EXPECT_EQ(scene.decision(1).kind, Kind::kPublish);
  EXPECT_THAT(scene.decision(1).members, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(scene.decision(3).kind, Kind::kFollow);
  EXPECT_EQ(scene.decision(3).leader, 1);
}

TEST(Decision, AProcessThatIsGoneDoesNotLead) {
  const Scene scene{.gone = {1}};
  EXPECT_EQ(scene.decision(2).kind, Kind::kPublish);
  EXPECT_THAT(scene.decision(2).members, ElementsAre(2, 3, 4));
  EXPECT_THAT(scene.decision(2).others, IsEmpty());
}

TEST(Decision, AProcessWithoutARecordIsRememberedButNotWaitedFor) {
  const Scene scene{.presence = {{2, Presence::kAbsent}}};
  EXPECT_THAT(scene.decision(1).members, ElementsAre(1, 3, 4));
  EXPECT_THAT(scene.decision(1).others, ElementsAre(2));
}

TEST(Decision, TheFirstRoundWaitsForTheLastCallUnlessItIsFull) {
  Scene scene{.last_call_is_over = false};
  EXPECT_EQ(scene.decision(1).kind, Kind::kAwaitRanks);
  scene.max_ranks = 4;
  EXPECT_EQ(scene.decision(1).kind, Kind::kPublish);
  scene.max_ranks = 100;
  scene.latest = round_of({1, 2, 3, 4}, 4);
  EXPECT_EQ(scene.decision(1).kind, Kind::kPublish);
}

TEST(Decision, TooFewRanksWait) {
  Scene scene{.gone = {3}, .min_ranks = 4};
  EXPECT_EQ(scene.decision(1).kind, Kind::kAwaitRanks);
  scene.ids = 5;
  EXPECT_THAT(scene.decision(1).members, ElementsAre(1, 2, 4, 5));
}

TEST(Decision, ThereIsPlaceForTheOldestOnly) {
  const Scene scene{.max_ranks = 3};
  EXPECT_THAT(scene.decision(1).members, ElementsAre(1, 2, 3));
  EXPECT_THAT(scene.decision(1).others, ElementsAre(4));
}

TEST(Decision, RanksOfTheLatestRoundComeFirstInTheirOrder) {
  const Scene scene{.latest = round_of({4, 2, 3}, 4), .ids = 6};
  EXPECT_EQ(scene.decision(4).kind, Kind::kPublish);
  EXPECT_THAT(scene.decision(4).members, ElementsAre(4, 2, 3, 5, 6));
  for (const std::int64_t follower : {2, 3, 5, 6}) EXPECT_EQ(scene.decision(follower).leader, 4) << follower;
}

TEST(Decision, ARankThatLivesAndDoesNotComeIsWaitedFor) {
  Scene scene{.latest = round_of({1, 2, 3, 4}, 4), .presence = {{1, Presence::kWorking}, {3, Presence::kWorking}}};
  EXPECT_EQ(scene.decision(2).kind, Kind::kAwaitWorkers);
  scene.patience_is_over = true;
  EXPECT_EQ(scene.decision(2).kind, Kind::kPublish);
  EXPECT_THAT(scene.decision(2).members, ElementsAre(2, 4));
  EXPECT_THAT(scene.decision(2).others, ElementsAre(1, 3));
  scene.patience_is_over = false;
  scene.gone = {1, 3};
  EXPECT_THAT(scene.decision(2).members, ElementsAre(2, 4));
  EXPECT_THAT(scene.decision(2).others, IsEmpty());
}

TEST(Decision, ANewcomerNeverGoesOnWithoutRanksThatLive) {
  Scene scene{.latest = round_of({1, 2}, 2),
              .ids = 4,
              .presence = {{1, Presence::kWorking}, {2, Presence::kWorking}},
              .patience_is_over = true};
  EXPECT_EQ(scene.decision(3).kind, Kind::kAwaitWorkers);
  scene.gone = {1};
  EXPECT_EQ(scene.decision(3).kind, Kind::kAwaitWorkers);
  scene.gone = {1, 2};
  EXPECT_EQ(scene.decision(3).kind, Kind::kPublish);
  EXPECT_THAT(scene.decision(3).members, ElementsAre(3, 4));
}

TEST(Decision, ANewcomerThatCannotBeReachedIsNotTakenIn) {
  Scene scene{.latest = round_of({1, 2}, 2), .silent = {2, 3}};
  EXPECT_THAT(scene.decision(1).members, ElementsAre(1, 2, 4));  // ranks of the latest round have been reached before
  EXPECT_THAT(scene.decision(1).others, ElementsAre(3));
  scene.silent = {3, 4};
  EXPECT_FALSE(has_place_for_more(scene.of(1)));
}

TEST(Decision, ARankThatDoesNotAnswerMayStillWork) {
  const Scene scene{.latest = round_of({1, 2}, 2),
                    .ids = 3,
                    .presence = {{1, Presence::kWorking}, {2, Presence::kWorking}},
                    .silent = {1, 2},
                    .patience_is_over = true};
  EXPECT_EQ(scene.decision(3).kind, Kind::kAwaitWorkers);
}

TEST(Decision, PlaceForMoreIsAskedOfThoseWhoWait) {
  Scene scene{.latest = round_of({1, 2}, 3), .ids = 4, .presence = {{4, Presence::kAbsent}}};
  EXPECT_FALSE(has_place_for_more(scene.of(1)));  // process 3 is not among the others: it is gone
  scene.latest.others = {3};
  EXPECT_TRUE(has_place_for_more(scene.of(1)));
  scene.gone = {3};
  EXPECT_FALSE(has_place_for_more(scene.of(1)));
  scene.presence.clear();
  EXPECT_TRUE(has_place_for_more(scene.of(1)));
  scene.max_ranks = 2;
  EXPECT_FALSE(has_place_for_more(scene.of(1)));
}

// Every process decides by itself. Whatever of three processes works, waits, or has ended, at most one publishes.
TEST(Decision, AtMostOnePublishes) {
  int published = 0;
  for (int in_latest = 0; in_latest < 8; ++in_latest)
    for (int working = 0; working < 8; ++working)
      for (int gone = 0; gone < 8; ++gone)
        for (const bool patience : {false, true}) {
          Scene scene{.ids = 3, .patience_is_over = patience};
          std::vector<std::int64_t> members;
          for (int i = 0; i < 3; ++i) {
            if ((in_latest >> i & 1) != 0) members.push_back(i + 1);
            if ((in_latest >> i & 1) != 0 && (working >> i & 1) != 0) scene.presence[i + 1] = Presence::kWorking;
            if ((gone >> i & 1) != 0) scene.gone.insert(i + 1);
          }
          if (!members.empty()) scene.latest = round_of(members, members.back());
          int publishers = 0;
          for (std::int64_t me = 1; me <= 3; ++me) {
            const bool waits = !scene.presence.contains(me) && !scene.gone.contains(me);
            const bool is_known = me > scene.latest.ids || (in_latest >> (me - 1) & 1) != 0;
            if (waits && is_known && scene.decision(me).kind == Kind::kPublish) ++publishers;
          }
          EXPECT_LE(publishers, 1) << in_latest << working << gone;
          published += publishers;
        }
  EXPECT_GT(published, 100);
}

}  // namespace
}  // namespace accord::elastic
