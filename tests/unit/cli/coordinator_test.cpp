// The decisions of node 0, message by message. No process is started and nothing waits.
#include "cli/launch/coordinator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "accord/info.hpp"

namespace accord::cli {
namespace {

using ::testing::HasSubstr;

class CoordinatorTest : public ::testing::Test {
 protected:
  static Job job() {
    Job job;
    job.nodes = 2;
    job.node = 0;
    job.run_id = "job";
    job.master_host = "head";
    job.max_restarts = 1;
    return job;
  }
  Hello hello(int node, int ranks = 1) const { return {std::string(version()), "job", 2, node, ranks}; }

  /// Both nodes arrive, with 2 and 3 ranks, and get the message to start.
  void start() {
    ASSERT_TRUE(coordinator_.admit(hello(0, 2)).ok());
    ASSERT_TRUE(coordinator_.admit(hello(1, 3)).ok());
    ASSERT_EQ(sent<Start>().size(), 2u);
  }
  void end(int generation) {
    for (const int node : {0, 1}) coordinator_.receive(node, Ended{generation});
  }
  Failed failed(int generation, Rank rank, int exit_code) const {
    Failure failure;
    failure.rank = rank;
    failure.exit_code = exit_code;
    return {generation, failure};
  }

  /// Returns the messages to the nodes since the last call, by node. All of them must be of type T, with one for each
  /// node.
  template <typename T>
  std::map<int, T> sent() {
    std::map<int, T> messages;
    for (const auto& [node, message] : coordinator_.pop_outgoing()) {
      const T* expected = std::get_if<T>(&message);
      EXPECT_TRUE(expected != nullptr) << to_line(message);
      if (expected == nullptr) continue;
      EXPECT_TRUE(messages.emplace(node, *expected).second) << "sent twice: " << to_line(message);
    }
    return messages;
  }
  bool sent_nothing() { return coordinator_.pop_outgoing().empty(); }

  int next_port_ = 1000;
  Coordinator coordinator_{job(), [this](Start& start) {
                             start.master_port = next_port_++;
                             return Status();
                           }};
};

TEST_F(CoordinatorTest, the_job_starts_when_the_last_node_arrives) {
  EXPECT_EQ(coordinator_.admit(hello(1, 3)).value(), 1);
  EXPECT_TRUE(coordinator_.gathering());
  EXPECT_TRUE(sent_nothing());
  EXPECT_EQ(coordinator_.missing(), "1 of 2 launchers (--node-rank 0)");
  EXPECT_EQ(coordinator_.admit(hello(0, 2)).value(), 0);
  EXPECT_FALSE(coordinator_.gathering());
  const std::map<int, Start> starts = sent<Start>();
  ASSERT_EQ(starts.size(), 2u);
  EXPECT_EQ(starts.at(0).first_rank, 0);
  EXPECT_EQ(starts.at(1).first_rank, 2);
  for (const auto& [node, start] : starts) {
    EXPECT_EQ(start.node, node);
    EXPECT_EQ(start.generation, 0);
    EXPECT_EQ(start.world_size, 5);
    EXPECT_EQ(start.master_host, "head");
    EXPECT_EQ(start.master_port, 1000);
  }
}

TEST_F(CoordinatorTest, nodes_without_a_number_are_numbered_in_arrival_order) {
  EXPECT_EQ(coordinator_.admit(hello(-1)).value(), 0);
  EXPECT_EQ(coordinator_.admit(hello(-1)).value(), 1);
}

TEST_F(CoordinatorTest, a_launcher_of_another_job_is_rejected_with_the_reason) {
  const auto refusal = [&](const Hello& hello) { return coordinator_.admit(hello).status().message(); };
  EXPECT_THAT(refusal({"0.0.0", "job", 2, 1, 1}), HasSubstr("this launcher has 0.0.0"));
  EXPECT_THAT(refusal({std::string(version()), "other", 2, 1, 1}), HasSubstr("the launcher belongs to \"other\""));
  EXPECT_THAT(refusal({std::string(version()), "job", 3, 1, 1}), HasSubstr("--nnodes 2, but this launcher with 3"));
  EXPECT_THAT(refusal(hello(2)), HasSubstr("--node-rank 2 must be less than"));
  ASSERT_TRUE(coordinator_.admit(hello(1)).ok());
  EXPECT_THAT(refusal(hello(1)), HasSubstr("another launcher arrived with --node-rank 1"));
  ASSERT_TRUE(coordinator_.admit(hello(0)).ok());
  EXPECT_THAT(refusal(hello(0)), HasSubstr("all 2 nodes of this job have arrived"));
  EXPECT_EQ(sent<Start>().size(), 2u) << "the refused ones have changed nothing";
}

TEST_F(CoordinatorTest, the_job_is_finished_when_the_ranks_of_all_nodes_have_ended) {
  start();
  coordinator_.receive(1, Ended{0});
  EXPECT_TRUE(sent_nothing());
  coordinator_.receive(0, Ended{0});
  const std::map<int, Finish> finishes = sent<Finish>();
  ASSERT_EQ(finishes.size(), 2u);
  for (const auto& [node, finish] : finishes) EXPECT_EQ(finish.exit_code, 0) << node;
}

TEST_F(CoordinatorTest, the_first_failure_counts_and_restarts_are_limited) {
  start();
  coordinator_.receive(1, failed(0, 3, 7));
  const std::map<int, Stop> stops = sent<Stop>();
  ASSERT_EQ(stops.size(), 2u);
  for (const auto& [node, stop] : stops) {
    EXPECT_EQ(stop.failure.rank, 3) << node;
    EXPECT_TRUE(stop.restart);
  }
  coordinator_.receive(0, failed(0, 0, 9));  // a consequence of the first failure
  EXPECT_TRUE(sent_nothing());
  end(0);
  const std::map<int, Start> starts = sent<Start>();
  ASSERT_EQ(starts.size(), 2u);
  EXPECT_EQ(starts.at(1).generation, 1);
  EXPECT_EQ(starts.at(1).master_port, 1001) << "the old port may be in use for a while";

  coordinator_.receive(0, failed(0, 0, 9));  // late news of the previous generation
  coordinator_.receive(1, Ended{0});
  EXPECT_TRUE(sent_nothing());
  coordinator_.receive(0, failed(1, 1, 5));
  EXPECT_FALSE(sent<Stop>().at(1).restart);
  end(1);
  EXPECT_EQ(sent<Finish>().at(0).exit_code, 5);
}

TEST_F(CoordinatorTest, a_signal_to_one_launcher_ends_the_job_and_cancels_a_restart) {
  start();
  coordinator_.receive(1, failed(0, 3, 7));
  EXPECT_TRUE(sent<Stop>().at(0).restart);
  coordinator_.receive(0, Interrupted{SIGTERM});
  const std::map<int, Stop> stops = sent<Stop>();
  EXPECT_EQ(stops.at(1).signal, SIGTERM);
  EXPECT_FALSE(stops.at(1).restart);
  end(0);
  EXPECT_EQ(sent<Finish>().at(1).exit_code, 128 + SIGTERM);
}

TEST_F(CoordinatorTest, a_launcher_that_disconnects_before_the_start_may_reconnect) {
  ASSERT_TRUE(coordinator_.admit(hello(1)).ok());
  coordinator_.lose(1, "gone");
  EXPECT_EQ(coordinator_.arrived(), 0);
  EXPECT_TRUE(coordinator_.admit(hello(1)).ok());
}

TEST_F(CoordinatorTest, a_launcher_that_disconnects_later_ends_the_job) {
  start();
  coordinator_.lose(1, "its connection ended");
  const std::map<int, Stop> stops = sent<Stop>();
  ASSERT_EQ(stops.size(), 1u) << "node 1 is not connected";
  EXPECT_FALSE(stops.at(0).restart) << "there is no other launcher for its ranks";
  EXPECT_EQ(to_string(stops.at(0).failure), "the launcher of node 1: its connection ended");
  coordinator_.lose(1, "again");
  EXPECT_TRUE(sent_nothing());
  coordinator_.receive(0, Ended{0});
  const std::map<int, Finish> finishes = sent<Finish>();
  ASSERT_EQ(finishes.size(), 1u);
  EXPECT_EQ(finishes.at(0).exit_code, 1);
}

TEST_F(CoordinatorTest, without_a_free_port_no_node_starts) {
  Coordinator coordinator(job(), [](Start&) { return Status(StatusCode::kIo, "none is left"); });
  ASSERT_TRUE(coordinator.admit(hello(0)).ok());
  ASSERT_TRUE(coordinator.admit(hello(1)).ok());
  const auto outgoing = coordinator.pop_outgoing();
  ASSERT_EQ(outgoing.size(), 2u);
  const Stop* stop = std::get_if<Stop>(&outgoing.front().second);
  ASSERT_TRUE(stop != nullptr) << to_line(outgoing.front().second);
  EXPECT_THAT(stop->failure.reason, HasSubstr("none is left"));
}

}  // namespace
}  // namespace accord::cli
