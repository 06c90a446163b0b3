// Every course that the formation of a group of three ranks can take: each order in which messages arrive, with a death
// or a deadline at any moment. The ranks are FormationProtocol; the network is a queue from each rank to each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/formation/protocol.hpp"

namespace accord::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kRanks = 3;
constexpr int kSteps = 3;  // hello, address, connected

enum class Trouble : std::uint8_t {
  kNone,
  kDeath,       ///< a rank dies; what it has sent arrives
  kReset,       ///< a rank dies, and what has not arrived yet is lost
  kDeadline,    ///< a rank gives up while it waits
  kUnconnected  ///< a rank says in the last step that it could not connect
};

struct Node {
  explicit Node(Rank rank) : protocol(rank, kRanks) {}

  FormationProtocol protocol;
  int step = 0;  ///< begun so far
  bool is_alive = true;
  bool has_left = false;  ///< has the result, and has closed its connections
  std::string history;    ///< everything that happened to it, in order
};

struct World {
  std::vector<Node> nodes;
  /// By sender and receiver; nullopt is the end of the connection.
  std::array<std::array<std::deque<std::optional<FormationMessage>>, kRanks>, kRanks> sent;
  std::array<std::array<bool, kRanks>, kRanks> has_ended = {};

  std::string key() const {
    std::string text;
    for (const Node& node : nodes) text += node.history + '|';
    return text;
  }
};

class Explorer {
 public:
  Explorer(Trouble trouble, Rank victim) : trouble_(trouble), victim_(victim) {}

  void run() {
    World world;
    for (Rank r = 0; r < kRanks; ++r) world.nodes.emplace_back(r);
    explore(world, trouble_ != Trouble::kNone && trouble_ != Trouble::kUnconnected);
  }
  int ends() const { return ends_; }
  int formed() const { return formed_; }
  int split() const { return split_; }

 private:
  static bool is_connected(Rank a, Rank b) { return a != b && (a == 0 || b == 0); }

  static bool is_done(const Node& node) { return !node.is_alive || node.has_left; }

  void deliver_outgoing(World& world, Rank from) const {
    for (const auto& outgoing : world.nodes[from].protocol.take_outgoing())
      for (const Rank to : outgoing.to) world.sent[from][to].emplace_back(outgoing.message);
  }

  /// A rank that has its result closes its connections.
  void leave(World& world, Rank rank) const {
    world.nodes[rank].has_left = true;
    deliver_outgoing(world, rank);
    for (Rank r = 0; r < kRanks; ++r)
      if (is_connected(rank, r)) world.sent[rank][r].emplace_back(std::nullopt);
  }

  std::string text_of(Rank rank, int step) const {
    return trouble_ == Trouble::kUnconnected && rank == victim_ && step == kSteps ? "cannot connect" : "";
  }

  /// Lets a rank do what it does without waiting.
  void settle(World& world, Rank rank) const {
    Node& node = world.nodes[rank];
    if (is_done(node)) return;
    while (node.protocol.failure().ok()) {
      if (node.step > 0 && node.protocol.texts() == nullptr) break;
      if (node.step == kSteps) {
        for (Rank r = 0; r < kRanks; ++r)
          if (!(*node.protocol.texts())[static_cast<std::size_t>(r)].empty())
            node.protocol.fail(Status(StatusCode::kPeerLost, "a rank could not connect", {r}));
        if (node.protocol.failure().ok()) node.protocol.finish();
        break;
      }
      node.protocol.begin(text_of(rank, ++node.step));
    }
    deliver_outgoing(world, rank);
    if (!node.protocol.failure().ok() || (node.step == kSteps && node.protocol.texts() != nullptr)) leave(world, rank);
  }

  void explore(const World& world, bool may_happen) {
    if (!seen_.insert(world.key() + (may_happen ? "m" : "")).second) return;
    bool is_over = true;
    for (Rank to = 0; to < kRanks; ++to) {
      const Node& node = world.nodes[to];
      if (is_done(node)) continue;
      if (node.history.empty()) {  // it has not called yet
        is_over = false;
        World next = world;
        next.nodes[to].history += 'b';
        settle(next, to);
        explore(next, may_happen);
        continue;
      }
      for (Rank from = 0; from < kRanks; ++from) {
        if (world.sent[from][to].empty() || world.has_ended[from][to]) continue;
        is_over = false;
        World next = world;
        std::optional<FormationMessage> message = std::move(next.sent[from][to].front());
        next.sent[from][to].pop_front();
        Node& receiver = next.nodes[to];
        receiver.history += message ? static_cast<char>('0' + from) : static_cast<char>('x' + from);
        if (message) {
          receiver.protocol.on_message(from, *std::move(message));
        } else {
          next.has_ended[from][to] = true;
          receiver.protocol.on_lost(from, Status(StatusCode::kPeerLost, "a rank has ended", {from}));
        }
        settle(next, to);
        explore(next, may_happen);
      }
    }
    if (may_happen) {
      const Node& victim = world.nodes[victim_];
      const bool is_waiting = !victim.history.empty() && !victim.has_left;
      // A host may fail when the rank has left, and what it sent last has not arrived.
      if (is_waiting || trouble_ == Trouble::kReset || (trouble_ == Trouble::kDeath && !victim.has_left)) {
        World next = world;
        strike(next);
        explore(next, false);
      }
    }
    if (is_over) check(world);
  }

  void strike(World& world) const {
    Node& node = world.nodes[victim_];
    node.history += '!';
    if (trouble_ == Trouble::kDeadline) {
      node.protocol.fail(Status(StatusCode::kTimeout, "a rank did not take part in time", {victim_}));
      return settle(world, victim_);
    }
    node.is_alive = false;
    for (Rank r = 0; r < kRanks; ++r) {
      if (!is_connected(victim_, r)) continue;
      if (trouble_ == Trouble::kReset) world.sent[victim_][r].clear();
      if (world.sent[victim_][r].empty() || world.sent[victim_][r].back())
        world.sent[victim_][r].emplace_back(std::nullopt);
    }
  }

  void check(const World& world) {
    ++ends_;
    int formed = 0, failed = 0;
    for (const Node& node : world.nodes) {
      if (!node.is_alive) continue;
      ASSERT_TRUE(node.has_left) << "a rank waits forever: " << world.key();
      if (node.protocol.failure().ok()) {
        ++formed;
        ASSERT_EQ(node.step, kSteps);
      } else {
        ++failed;
        ASSERT_THAT(node.protocol.failure().ranks(), ElementsAre(victim_)) << world.key();
      }
    }
    if (formed > 0) ++formed_;
    if (formed > 0 && failed > 0) {
      ++split_;
      const bool only_the_victim = failed == 1 && !world.nodes[victim_].protocol.failure().ok();
      ASSERT_TRUE(victim_ == 0 || only_the_victim) << "the ranks have different results: " << world.key();
    }
    if (trouble_ == Trouble::kNone) {
      ASSERT_EQ(failed, 0);
    }
    if (trouble_ == Trouble::kUnconnected) {
      ASSERT_EQ(formed, 0);
    }
  }

  const Trouble trouble_;
  const Rank victim_;
  std::set<std::string> seen_;
  int ends_ = 0;
  int formed_ = 0;  ///< ends in which a rank has the group
  int split_ = 0;   ///< ends in which some live ranks have the group and others do not
};

TEST(FormationProtocol, without_trouble_all_ranks_form_the_group_in_every_order_of_messages) {
  Explorer explorer(Trouble::kNone, 0);
  explorer.run();
  EXPECT_GT(explorer.ends(), 0);
  EXPECT_EQ(explorer.formed(), explorer.ends());
}

TEST(FormationProtocol, a_death_at_any_moment_ends_every_wait_and_names_the_dead_rank) {
  for (const Trouble trouble : {Trouble::kDeath, Trouble::kReset}) {
    for (Rank victim = 0; victim < kRanks; ++victim) {
      Explorer explorer(trouble, victim);
      explorer.run();
      EXPECT_GT(explorer.ends(), explorer.formed()) << victim;
      // A rank that dies after the others have all texts is in the group, which then fails.
      EXPECT_GT(explorer.formed(), 0) << victim;
      EXPECT_EQ(explorer.split() > 0, victim == 0 && trouble == Trouble::kReset) << victim;
    }
  }
}

// A rank that gives up when the last texts are on their way to it leaves a group that the others have formed.
TEST(FormationProtocol, a_rank_that_gives_up_at_any_moment_ends_the_formation_on_all) {
  for (Rank victim = 0; victim < kRanks; ++victim) {
    Explorer explorer(Trouble::kDeadline, victim);
    explorer.run();
    EXPECT_GT(explorer.ends(), explorer.formed()) << victim;
    EXPECT_EQ(explorer.split() > 0, victim != 0) << victim;
  }
}

TEST(FormationProtocol, a_rank_that_cannot_connect_fails_the_formation_on_all) {
  for (Rank victim = 0; victim < kRanks; ++victim) {
    Explorer explorer(Trouble::kUnconnected, victim);
    explorer.run();
    EXPECT_GT(explorer.ends(), 0) << victim;
  }
}

TEST(FormationProtocol, messages_without_meaning_fail_the_formation_and_name_the_sender) {
  const auto failure_after = [](const FormationMessage& message) {
    FormationProtocol protocol(0, kRanks);
    protocol.begin("mine");
    protocol.on_message(2, message);
    return protocol.failure();
  };
  using Kind = FormationMessage::Kind;
  for (const FormationMessage& message : {FormationMessage{.kind = Kind::kTexts, .step = 1, .texts = {"", "", ""}},
                                          FormationMessage{.kind = Kind::kText, .step = 2, .texts = {""}},
                                          FormationMessage{.kind = Kind::kText, .step = 0, .texts = {""}},
                                          FormationMessage{.kind = Kind::kText, .step = 1, .texts = {}}}) {
    const Status failure = failure_after(message);
    EXPECT_EQ(failure.code(), StatusCode::kCorrupt);
    EXPECT_THAT(failure.ranks(), ElementsAre(2));
  }
  EXPECT_TRUE(failure_after({.kind = Kind::kText, .step = 1, .texts = {"theirs"}}).ok());
}

TEST(FormationProtocol, a_group_of_one_rank_needs_no_messages) {
  FormationProtocol protocol(0, 1);
  protocol.begin("mine");
  EXPECT_THAT(protocol.take_outgoing(), IsEmpty());
  ASSERT_NE(protocol.texts(), nullptr);
  EXPECT_THAT(*protocol.texts(), ElementsAre("mine"));
}

TEST(FormationMessage, survives_its_encoding) {
  const FormationMessage sent{.kind = FormationMessage::Kind::kFailed,
                              .step = 3,
                              .texts = {"a\nb", ""},
                              .patience = 1'000'000'000'000,
                              .failure = Status(StatusCode::kMismatch, "rank 1 differs", {1, 2})};
  const Result<FormationMessage> read = decode_message(encode(sent));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->kind, sent.kind);
  EXPECT_EQ(read->step, 3U);
  EXPECT_EQ(read->texts, sent.texts);
  EXPECT_EQ(read->patience, sent.patience);
  EXPECT_EQ(read->failure.to_string(), "mismatch: rank 1 differs");
  EXPECT_THAT(read->failure.ranks(), ElementsAre(1, 2));
}

TEST(FormationMessage, other_bytes_are_refused) {
  const std::string whole = encode({.kind = FormationMessage::Kind::kText, .step = 1, .texts = {"x"}});
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_EQ(decode_message(whole.substr(0, length)).status().code(), StatusCode::kCorrupt) << length;
  for (const char* text : {R"({"kind":0,"step":1,"texts":[],"patience":-1,"code":0})",
                           R"({"kind":0,"step":1,"texts":[],"patience":1e300,"code":0})", "[]", "7", "{}",
                           R"({"kind":9,"step":1,"texts":[],"patience":0,"code":0})",
                           R"({"kind":0,"step":1,"texts":[],"patience":0,"code":3,"reason":"","ranks":[]})",
                           R"({"kind":2,"step":1,"texts":[],"patience":0,"code":0,"reason":"","ranks":[]})",
                           R"({"kind":2,"step":1,"texts":[],"patience":0,"code":99,"reason":"","ranks":[]})"})
    EXPECT_EQ(decode_message(text).status().code(), StatusCode::kCorrupt) << text;
}

}  // namespace
}  // namespace accord::comm
