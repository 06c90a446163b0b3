// MSCCL++ execution plans: the imported plans are proved by the verifier and run by the interpreter, neither of which
// knows MSCCL++.
#include "plan/mscclpp.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "unit/plan/mscclpp_checks.hpp"

namespace accord::plan {
namespace {

using namespace testing;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Mscclpp, plans_of_both_protocols_match_the_definition_of_their_collective) {
  std::mt19937 random(7);
  for (const int ranks : {2, 4, 8}) {
    for (const NamedText& named : execution_plans(ranks)) {
      SCOPED_TRACE(named.name + fmt::format(" of {}", ranks));
      const Plan plan = imported(named.plan);
      ASSERT_EQ(plan.size, ranks);
      expect_correct(plan, random);
    }
  }
}

TEST(Mscclpp, sums_of_all_ranks_in_one_step_follow_the_canonical_tree) {
  EXPECT_EQ(imported(all_pairs(4)).order, Order::kCanonical);
  EXPECT_EQ(imported(packets_two_shot_in_place(8)).order, Order::kCanonical);
  EXPECT_EQ(imported(ring_in_place(4)).order, Order::kFixed);
  EXPECT_EQ(imported(put_all_gather(4, false)).order, Order::kNone);
}

TEST(Mscclpp, packets_are_preserved_and_intermediate_sums_use_partials) {
  const Plan packets = imported(packets_all_pairs(4));
  EXPECT_EQ(packets.packet_chunks, 4);
  EXPECT_EQ(packets.scratch_chunks, 0);
  EXPECT_EQ(packets.signals, 0);
  EXPECT_GT(imported(ring_in_place(4)).partial_chunks, 0);
  EXPECT_EQ(imported(two_shot_in_place(4)).partial_chunks, 0);
}

TEST(Mscclpp, a_thread_block_is_a_lane) {
  const Plan plan = imported(shared_blocks(2));
  ASSERT_EQ(plan.programs[0].lanes.size(), 3U);
  EXPECT_EQ(plan.input_chunks, 2);  // one chunk, shared by two thread blocks
}

TEST(Mscclpp, inputs_are_staged_where_in_place_calls_need_it) {
  EXPECT_EQ(imported(late_reader()).scratch_chunks, 3);  // the op's own and two inputs
  EXPECT_EQ(imported(get_all_to_all(2)).scratch_chunks, 1);
}

TEST(Mscclpp, sizes_that_would_exhaust_memory_are_rejected) {
  Text plan = all_pairs(2);
  plan.ops(0)[2]["tbg_info"] = {{"tb_id", 0}, {"tbg_size", 64}};
  for (int rank = 0; rank < 2; ++rank) plan.json["gpus"][rank]["input_chunks"] = 60000;
  EXPECT_THAT(refusal(plan).message(), HasSubstr("gpus: 7680128 chunks on all ranks; a plan has at most 4194304"));
  Text nested = shared_blocks(2);
  Json deep = nested.ops(0)[3];
  deep["ops"] = Json::array({deep});
  nested.ops(0)[3] = deep;
  EXPECT_THAT(refusal(nested).message(), HasSubstr("ops[3].ops[0]: a pipeline inside a pipeline"));
}

TEST(Mscclpp, the_verifier_rejects_an_all_reduce_that_does_nothing) {
  Text plan = all_pairs(2);
  for (int rank = 0; rank < 2; ++rank) plan.ops(rank) = Json::array({{{"name", "nop"}}});
  const Status status = refusal(plan);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("rank 0: no step writes output[0] of rank 0"));
}

TEST(Mscclpp, ranks_that_both_wait_first_are_rejected_by_name) {
  Text plan = all_pairs(2);
  for (int rank = 0; rank < 2; ++rank) std::swap(plan.ops(rank)[0], plan.ops(rank)[1]);
  EXPECT_THAT(refusal(plan).message(),
              HasSubstr("gpus[0].threadblocks[0].ops[0] (rlxwait): waits for ever (deadlock)"));
}

TEST(Mscclpp, a_missing_signal_is_a_race_that_the_verifier_names) {
  Text plan = all_pairs(2);
  for (int rank = 0; rank < 2; ++rank) {
    plan.ops(rank).erase(0);
    plan.ops(rank).erase(0);
  }
  EXPECT_THAT(refusal(plan).message(), AllOf(HasSubstr("lane 0, step"), HasSubstr("scratch[0] of rank")));
}

TEST(Mscclpp, a_missing_or_double_contribution_is_rejected) {
  Text missing = all_pairs(4);
  missing.ops(2)[2]["src_buff"].erase(3);
  EXPECT_THAT(refusal(missing).message(), HasSubstr("lacks the contribution of rank 3"));
  Text twice = all_pairs(4);
  twice.ops(2)[2]["src_buff"].push_back(twice.ops(2)[2]["src_buff"][1]);
  EXPECT_THAT(refusal(twice).message(), HasSubstr("holds the contribution of rank 0 2 times"));
}

TEST(Mscclpp, ops_without_a_counterpart_are_rejected_by_name) {
  const auto with_op = [](std::string_view name) {
    Text plan = all_pairs(2);
    plan.ops(1)[2]["name"] = name;
    return refusal(plan);
  };
  EXPECT_THAT(with_op("rrf").message(), HasSubstr("unknown operation \"rrf\"; did you mean \"rre\"?"));
  for (const std::string_view name : {"custom", "test", "sendrecv"}) {
    Text other = all_pairs(2);
    other.json["collective"] = name;
    EXPECT_EQ(refusal(other).code(), StatusCode::kUnsupported);
    EXPECT_THAT(refusal(other).message(), HasSubstr(fmt::format("collective: \"{}\"", name)));
  }
  Text protocol = all_pairs(2);
  protocol.json["protocol"] = "LL128";
  EXPECT_THAT(refusal(protocol).message(), HasSubstr("protocol \"LL128\" is not known; available: Simple and LL"));
}

TEST(Mscclpp, damaged_plans_are_rejected_with_the_location) {
  const std::vector<Damage> all = {
      {"no name", [](Text& t) { t.json.erase("name"); }, "MSCCL++ plan: lacks \"name\""},
      {"no gpus", [](Text& t) { t.json.erase("gpus"); }, "lacks \"gpus\""},
      {"gpus is not a list", [](Text& t) { t.json["gpus"] = 4; }, "gpus: expected a list"},
      {"no GPU", [](Text& t) { t.json["gpus"] = Json::array(); }, "gpus: 0 GPUs"},
      {"collective", [](Text& t) { t.json["collective"] = "allredce"; }, "did you mean \"allreduce\"?"},
      {"in place", [](Text& t) { t.json["inplace"] = "no"; }, "inplace: expected true or false"},
      {"id", [](Text& t) { t.json["gpus"][1]["id"] = 3; }, "gpus[1].id: 3 where 1 is expected"},
      {"huge", [](Text& t) { t.json["gpus"][0]["input_chunks"] = 1e18; },
       "gpus[0].input_chunks: expected a whole number"},
      {"too many", [](Text& t) { t.json["gpus"][0]["input_chunks"] = 2000000000; },
       "gpus[0].input_chunks: 2000000000 is out of bounds: 1 to 65536"},
      {"uneven", [](Text& t) { t.json["gpus"][1]["output_chunks"] = 2; }, "gpus[1]: has other numbers of"},
      {"peer -1", [](Text& t) { t.json["gpus"][0]["channels"][0]["connected_to"][0] = -1; },
       "gpus[0].channels[0].connected_to[0]: -1 is out of bounds: 0 to 1"},
      {"own peer", [](Text& t) { t.json["gpus"][0]["channels"][0]["connected_to"][0] = 0; }, "rank 0 is its own peer"},
      {"channel type", [](Text& t) { t.json["gpus"][0]["channels"][0]["channel_type"] = "wire"; },
       "\"wire\" is not a type of channel"},
      {"buffer type", [](Text& t) { t.json["gpus"][0]["remote_buffers"][0]["type"] = "x"; },
       "gpus[0].remote_buffers[0].type: unknown buffer \"x\"; available: i, o and s"},
      {"channel id", [](Text& t) { t.json["gpus"][0]["threadblocks"][0]["channels"][0]["channel_ids"][0] = 1; },
       "gpus[0].threadblocks[0].channels[0].channel_ids[0]: 1 is out of bounds: 0 to 0"},
      {"buffer ref",
       [](Text& t) { t.json["gpus"][0]["threadblocks"][0]["remote_buffer_refs"][0]["remote_buffer_ids"][0] = 99; },
       "remote_buffer_ids[0]: 99 is out of bounds"},
      {"access", [](Text& t) { t.json["gpus"][0]["remote_buffers"][0]["access_channel_types"][0] = "port"; },
       "remote buffer 0 is not reached by channels of type memory"},
      {"op channel", [](Text& t) { t.ops(0)[0]["channel_ids"][0] = 7; },
       "gpus[0].threadblocks[0].ops[0].channel_ids[0]: 7"},
      {"no channel type", [](Text& t) { t.ops(0)[0].erase("channel_type"); }, "ops[0]: lacks \"channel_type\""},
      {"no ops", [](Text& t) { t.json["gpus"][0]["threadblocks"][0].erase("ops"); }, "threadblocks[0]: lacks \"ops\""},
      {"op is a text", [](Text& t) { t.ops(0)[1] = "wait"; }, "ops[1]: expected an object"},
      {"index", [](Text& t) { t.ops(0)[2]["dst_buff"][0]["index"] = 1; },
       "ops[2].dst_buff[0].index: 1 is out of bounds: 0 to 0"},
      {"size 0", [](Text& t) { t.ops(0)[2]["dst_buff"][0]["size"] = 0; },
       "ops[2].dst_buff[0].size: 0 is out of bounds: 1 to 1"},
      {"buffer id", [](Text& t) { t.ops(0)[2]["src_buff"][1]["buffer_id"] = 3; },
       "src_buff[1].buffer_id: 3 is out of bounds"},
      {"local for remote", [](Text& t) { t.ops(0)[2]["src_buff"][1] = Text::own("i", 0); },
       "src_buff[1]: a peer's memory"},
      {"remote for local", [](Text& t) { t.ops(0)[2]["dst_buff"][0] = Text::of(0, 1, "o", 0); },
       "dst_buff[0]: the rank's own memory"},
      {"no sources", [](Text& t) { t.ops(0)[2].erase("src_buff"); }, "ops[2]: lacks \"src_buff\""},
      {"one source", [](Text& t) { t.ops(0)[2]["src_buff"].erase(1); }, "rre has 1 sources and 1 destinations"},
      {"barrier",
       [](Text& t) {
         t.ops(0)[1] = {{"name", "barrier"}, {"barrier_id", 0}, {"num_threadblocks", 2}};
       },
       "num_threadblocks: 2 is out of bounds: 1 to 1"},
      {"semaphore",
       [](Text& t) {
         t.ops(0)[1] = {{"name", "sem_acquire"}, {"semaphore_ids", {0}}};
       },
       "semaphore_ids[0]: 0 is out of bounds: there are none"},
      {"semaphore twice",
       [](Text& t) {
         t.json["gpus"][0]["semaphores"] = Json::array({{{"init_value", 1}}});
         t.ops(0)[1] = {{"name", "sem_acquire"}, {"semaphore_ids", {0, 0}}};
       },
       "ops[1] (sem_acquire): names a semaphore twice"},
      {"group of blocks",
       [](Text& t) {
         t.ops(0)[2]["tbg_info"] = {{"tb_id", 2}, {"tbg_size", 2}};
       },
       "tbg_info.tb_id: 2 is out of bounds: 0 to 1"},
      {"unwritten", [](Text& t) { t.ops(0)[2]["src_buff"][0] = Text::own("o", 0); },
       "ops[2] (rre): reads o[0] of rank 0, where nothing has been written"},
  };
  for (const Damage& damage : all) {
    Text plan = all_pairs(2);
    damage.make(plan);
    const Status status = refusal(plan);
    EXPECT_THAT(status.message(), HasSubstr(damage.message)) << damage.name;
    EXPECT_NE(status.code(), StatusCode::kInternal);
  }
  EXPECT_THAT(import_mscclpp("{").status().message(), HasSubstr("MSCCL++ plan: "));
}

TEST(Mscclpp, waiting_for_packets_that_no_rank_puts_is_rejected) {
  Text plan = packets_all_pairs(2);
  plan.ops(1).erase(0);
  EXPECT_THAT(refusal(plan).message(), HasSubstr("gpus[0].threadblocks[0].ops[1] (repkt): waits for ever"));
}

TEST(Mscclpp, any_single_change_is_rejected_or_harmless) {
  std::mt19937 random(3);
  for (const NamedText& named : execution_plans(2))
    expect_changes_harmless(named.plan, SwitchOps::kMulticast, 40, random);
}

}  // namespace
}  // namespace accord::plan
