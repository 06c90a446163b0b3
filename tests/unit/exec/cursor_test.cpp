// The cursor on hand-made plans, with both ranks polled by one thread: where it stops, where it continues, what it
// rejects.
#include "exec/cursor.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "plan/builder.hpp"

namespace accord::exec {
namespace {

using plan::Chunk;
using plan::Space;

/// Two ranks over plain memory.
class CursorTest : public ::testing::Test {
 protected:
  CursorTest() {
    windows_.assign(2, std::vector<std::byte>(layout_.bytes()));
    for (const int rank : {0, 1})
      domains_.push_back(
          std::make_unique<Domain>(layout_, rank, std::vector<std::byte*>{windows_[0].data(), windows_[1].data()}));
  }

  /// Rank 0 copies its input into its scratch and signals; rank 1 waits and copies from there. Rank 0 gets no answer.
  plan::Plan one_way() {
    plan::PlanBuilder builder("one_way", {.collective = Collective::kSendRecv}, 2,
                              {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = 1});
    builder.on(0).copy(Chunk{0, Space::kInput, 0}, {Chunk{0, Space::kScratch, 0}}).signal(1);
    builder.on(1).wait(0).copy(Chunk{0, Space::kScratch, 0}, {Chunk{1, Space::kOutput, 0}});
    Result<plan::Plan> plan = std::move(builder).build();
    EXPECT_TRUE(plan.ok()) << plan.status().to_string();
    return std::move(*plan);
  }

  RequestRecord request(std::uint64_t count) const {
    return {.collective = Collective::kSendRecv, .dtype = DType::kInt32, .root = 0, .count = count};
  }

  DomainLayout layout_{.members = 2, .signals = 2, .slot_bytes = 4096};
  std::vector<std::vector<std::byte>> windows_;
  std::vector<std::unique_ptr<Domain>> domains_;
};

TEST_F(CursorTest, a_message_larger_than_a_slot_is_sent_in_rounds) {
  const plan::Plan plan = one_way();
  const std::uint64_t count = 3000;  // 12,000 bytes in slots of 4,096: three rounds
  const LoweredPlan sender = lower(plan, 0, layout_, 4096, request(count)).value();
  const LoweredPlan receiver = lower(plan, 1, layout_, 4096, request(count)).value();
  EXPECT_EQ(sender.rounds, 3u);
  std::vector<std::int32_t> input(count), output(count);
  for (std::uint64_t i = 0; i < count; ++i) input[i] = static_cast<std::int32_t>(i * i);
  Cursor send, receive;
  send.start(*domains_[0], sender, input.data(), nullptr);
  receive.start(*domains_[1], receiver, nullptr, output.data());
  EXPECT_EQ(receive.poll(), Progress::kPending) << "nothing was sent yet";
  EXPECT_EQ(receive.waiting_for(), 0);
  EXPECT_EQ(send.poll(), Progress::kPending) << "the third round must wait until the first was read";
  EXPECT_EQ(send.waiting_for(), 1);
  EXPECT_EQ(domains_[0]->round(), 2u);
  EXPECT_EQ(receive.poll(), Progress::kPending);
  EXPECT_EQ(send.poll(), Progress::kDone);
  EXPECT_EQ(receive.poll(), Progress::kDone);
  EXPECT_EQ(output, input);
}

TEST_F(CursorTest, a_peer_with_a_different_request_is_a_mismatch_and_its_request_can_be_read) {
  const plan::Plan plan = one_way();
  const LoweredPlan sender = lower(plan, 0, layout_, 4096, request(7)).value();
  const LoweredPlan receiver = lower(plan, 1, layout_, 4096, request(8)).value();
  std::vector<std::int32_t> memory(8);
  Cursor send, receive;
  send.start(*domains_[0], sender, memory.data(), nullptr);
  receive.start(*domains_[1], receiver, nullptr, memory.data());
  EXPECT_EQ(send.poll(), Progress::kDone);
  EXPECT_EQ(receive.poll(), Progress::kMismatch);
  std::uint64_t word = 0;
  RequestRecord theirs;
  ASSERT_TRUE(domains_[1]->record_of(0, domains_[1]->round(), &word, &theirs));
  EXPECT_EQ(theirs, request(7));
  EXPECT_FALSE(domains_[1]->record_of(0, 2, &word, &theirs)) << "rank 0 has not reached round 2";
}

TEST_F(CursorTest, lanes_meet_at_their_barrier) {
  plan::PlanBuilder builder("lanes", {.collective = Collective::kSendRecv}, 2,
                            {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = 1});
  builder.on(0).copy(Chunk{0, Space::kInput, 0}, {Chunk{0, Space::kScratch, 0}}).signal(1, 0);
  builder.on(1).lane(0).lane_barrier(0).copy(Chunk{0, Space::kScratch, 0}, {Chunk{1, Space::kOutput, 0}});
  builder.on(1).lane(1).wait(0, 0).lane_barrier(0);
  const plan::Plan plan = std::move(builder).build().value();
  const LoweredPlan sender = lower(plan, 0, layout_, 4096, request(5)).value();
  const LoweredPlan receiver = lower(plan, 1, layout_, 4096, request(5)).value();
  const std::vector<std::int32_t> input = {1, 2, 3, 4, 5};
  std::vector<std::int32_t> output(5);
  Cursor send, receive;
  receive.start(*domains_[1], receiver, nullptr, output.data());
  EXPECT_EQ(receive.poll(), Progress::kPending);
  EXPECT_EQ(output, std::vector<std::int32_t>(5)) << "lane 0 must not pass before lane 1 has waited";
  send.start(*domains_[0], sender, input.data(), nullptr);
  EXPECT_EQ(send.poll(), Progress::kDone);
  while (receive.poll() != Progress::kDone) {
  }
  EXPECT_EQ(output, input);
}

TEST_F(CursorTest, plans_that_do_not_fit_the_domain_are_rejected) {
  plan::Plan plan = one_way();
  const DomainLayout three{.members = 3, .signals = 2, .slot_bytes = 4096};
  EXPECT_EQ(lower(plan, 0, three, 4096, request(1)).status().code(), StatusCode::kInvalidArgument);
  plan.order = plan::Order::kCanonical;
  RequestRecord complex = request(1);
  complex.dtype = DType::kComplex64;
  complex.op = ReduceOp::kMin;
  EXPECT_EQ(lower(plan, 0, layout_, 4096, complex).status().code(), StatusCode::kUnsupported);
}

TEST_F(CursorTest, ranks_with_different_slots_do_not_read_each_others_data) {
  const plan::Plan plan = one_way();
  const LoweredPlan sender = lower(plan, 0, layout_, 1024, request(1)).value();
  const LoweredPlan receiver = lower(plan, 1, layout_, 4096, request(1)).value();
  std::int32_t input = 7, output = 0;
  Cursor send, receive;
  send.start(*domains_[0], sender, &input, nullptr);
  receive.start(*domains_[1], receiver, nullptr, &output);
  EXPECT_EQ(send.poll(), Progress::kDone);
  EXPECT_EQ(receive.poll(), Progress::kMismatch);
}

TEST_F(CursorTest, the_gate_detects_a_mismatch_of_ranks_that_never_wait) {
  for (std::uint64_t round = 1; round <= kLineDepth; ++round)
    for (const std::uint32_t rank : {0u, 1u}) {
      domains_[rank]->begin_round(request(1), round == 1 ? 10 + rank : 20);
      domains_[rank]->end_round(false, kLineDepth);
    }
  for (const int rank : {0, 1}) {
    EXPECT_FALSE(domains_[rank]->gate_open(kLineDepth));
    EXPECT_TRUE(domains_[rank]->differs());
    EXPECT_EQ(domains_[rank]->laggard(), 1 - rank);
  }
}

TEST_F(CursorTest, equal_calls_pass_the_gate) {
  for (std::uint64_t round = 1; round <= 3 * kLineDepth; ++round)
    for (const std::uint32_t rank : {0u, 1u}) {
      ASSERT_TRUE(domains_[rank]->gate_open(kLineDepth)) << "round " << round;
      domains_[rank]->begin_round(request(1), static_cast<std::uint32_t>(round % 5));
      domains_[rank]->end_round(false, kLineDepth);
    }
  EXPECT_FALSE(domains_[0]->differs() || domains_[1]->differs());
}

TEST(Domain, finds_the_rank_that_waiting_ranks_wait_for) {
  const DomainLayout layout{.members = 4, .signals = 2, .slot_bytes = 4096};
  std::vector<std::vector<std::byte>> windows(4, std::vector<std::byte>(layout.bytes()));
  std::vector<std::byte*> regions;
  for (auto& window : windows) regions.push_back(window.data());
  std::vector<Domain> domains;
  for (int m = 0; m < 4; ++m) domains.emplace_back(layout, m, regions);
  const Clock::time_point now = Clock::now();
  const auto begin = [&domains](int m) { domains[static_cast<std::size_t>(m)].begin_round(RequestRecord{}, 3); };
  for (int m = 0; m < 4; ++m) begin(m);
  EXPECT_EQ(domains[0].last_waited_for(1, now), 1) << "it has not published that it waits";
  domains[1].publish_waiting(2, now);
  EXPECT_EQ(domains[0].last_waited_for(1, now), 2);
  domains[2].publish_waiting(3, now);
  EXPECT_EQ(domains[0].last_waited_for(1, now), 3);
  EXPECT_EQ(domains[3].last_waited_for(1, now), 2) << "the rank that asks is not the late one";
  EXPECT_EQ(domains[0].last_waited_for(1, now + std::chrono::seconds(1)), 1) << "it has not checked since";
  domains[2].publish_waiting(-1, now);
  EXPECT_EQ(domains[0].last_waited_for(1, now), 2) << "it continued";
  domains[2].publish_waiting(1, now);
  EXPECT_GT(domains[0].last_waited_for(1, now), 0) << "a circle has an end";
  domains[1].publish_waiting(2, now);
  begin(0);
  domains[2].publish_waiting(-1, now);
  EXPECT_EQ(domains[0].last_waited_for(1, now), 2) << "it is still in the round before, and waits there";
  begin(1);
  EXPECT_EQ(domains[0].last_waited_for(1, now), 1) << "the published rank belongs to the previous round";
}

TEST(History, keeps_a_difference_and_is_never_zero) {
  std::uint32_t one = history_after(kNoHistory, 1), other = history_after(kNoHistory, 2);
  for (std::uint32_t i = 0; i < 100'000; ++i) {
    ASSERT_NE(one, other);
    ASSERT_NE(one, 0u);
    ASSERT_LT(one, 1u << 24);
    const std::uint32_t signature = (i * 2654435761u) >> 8;
    one = history_after(one, signature);
    other = history_after(other, signature);
  }
}

TEST(RoundWord, distinguishes_rounds_and_requests_and_is_never_zero) {
  const RequestRecord request{.collective = Collective::kAllReduce, .count = 4};
  const std::uint32_t signature = signature_of(request, "packet");
  EXPECT_NE(signature, signature_of(request, "two_shot"));
  EXPECT_NE(signature, 0u);
  EXPECT_LT(signature, 1u << 24);
  EXPECT_TRUE(same_round(round_word(7, signature), round_word(7, 1)));
  EXPECT_FALSE(same_round(round_word(7, signature), round_word(8, signature)));
  // After 2^40 rounds the numbers start over; even then a word is not zero.
  EXPECT_NE(round_word(std::uint64_t{1} << 40, signature), 0u);
}

TEST(Lower, avg_and_premul_sum_need_a_plan_that_sums_all_ranks_in_one_step) {
  const DomainLayout layout{.members = 3, .signals = 2, .slot_bytes = 4096};
  plan::PlanBuilder builder("in_parts", {.collective = Collective::kAllReduce}, 3,
                            {.input_chunks = 1, .output_chunks = 1, .scratch_chunks = 1});
  builder.set_order(plan::Order::kCanonical);
  builder.on(0).reduce({Chunk{0, Space::kInput, 0}, Chunk{1, Space::kScratch, 0}}, {Chunk{0, Space::kOutput, 0}});
  const Result<plan::Plan> plan = std::move(builder).build();
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const auto lowered = [&](ReduceOp op) {
    return lower(*plan, 0, layout, 4096,
                 {.collective = Collective::kAllReduce, .dtype = DType::kFloat32, .op = op, .count = 4})
        .status();
  };
  EXPECT_TRUE(lowered(ReduceOp::kSum).ok());
  for (const ReduceOp op : {ReduceOp::kAvg, ReduceOp::kPremulSum}) {
    EXPECT_EQ(lowered(op).code(), StatusCode::kUnsupported);
    EXPECT_NE(lowered(op).message().find("adds only some ranks at a time"), std::string::npos);
  }
}

}  // namespace
}  // namespace accord::exec
