#include "plan/selector.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace accord::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using topology::Topology;

Selector selector(std::string_view overrides = "") {
  Result<Selector> made = Selector::create(overrides);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return *std::move(made);
}

std::string_view chosen(const Selector& selector, Collective collective, std::size_t bytes, const Topology& topology) {
  const Result<Choice> choice = selector.choose({collective, bytes}, topology);
  EXPECT_TRUE(choice.ok()) << choice.status().to_string();
  return choice.ok() ? choice->algorithm->name : "";
}

Topology crowded(int size) {  // all ranks on one core
  std::vector<topology::Place> places(static_cast<std::size_t>(size));
  for (auto& place : places) place = {.host = "a", .process = 1, .cpus = {0}, .numa_nodes = {0}, .cores = 1};
  return Topology(places);
}

std::string table_refusal(std::string_view table) {
  const auto rows = parse_table(table);
  EXPECT_FALSE(rows.ok()) << table;
  EXPECT_EQ(rows.status().code(), StatusCode::kInvalidArgument);
  return rows.status().message();
}

TEST(Selector, defaults_serve_every_collective_at_every_size_on_every_group) {
  const Selector defaults = selector();
  for (int c = 0; c < kCollectiveCount; ++c) {
    for (const int size : {1, 2, 3, 8, 9, 64, 1000}) {
      for (std::size_t bytes = 0; bytes < std::size_t{1} << 40; bytes = bytes * 2 + 1) {
        const auto choice = defaults.choose({static_cast<Collective>(c), bytes}, Topology::uniform(size));
        ASSERT_TRUE(choice.ok()) << choice.status().to_string();
        EXPECT_EQ(choice->algorithm->collective, static_cast<Collective>(c));
      }
    }
  }
}

TEST(Selector, ranges_include_their_first_byte_and_not_their_last) {
  const Selector mine = selector("all_reduce:0-100=packet,100-200=one_shot,200-inf=two_shot");
  const Topology two = Topology::uniform(2);
  EXPECT_EQ(chosen(mine, Collective::kAllReduce, 0, two), "packet");
  EXPECT_EQ(chosen(mine, Collective::kAllReduce, 99, two), "packet");
  EXPECT_EQ(chosen(mine, Collective::kAllReduce, 100, two), "one_shot");
  EXPECT_EQ(chosen(mine, Collective::kAllReduce, 199, two), "one_shot");
  EXPECT_EQ(chosen(mine, Collective::kAllReduce, 200, two), "two_shot");
  EXPECT_EQ(chosen(mine, Collective::kAllReduce, std::numeric_limits<std::size_t>::max() - 1, two), "two_shot");
}

TEST(Selector, the_last_matching_rule_applies_and_others_are_unchanged) {
  const Topology two = Topology::uniform(2);
  const Selector mine = selector("all_reduce:1k-2k=two_shot@64k;all_reduce:1k-2k=one_shot@128k");
  EXPECT_EQ(chosen(mine, Collective::kAllReduce, 1024, two), "one_shot");
  EXPECT_EQ(mine.choose({Collective::kAllReduce, 1024}, two)->slot_bytes, std::size_t{128} << 10);
  EXPECT_EQ(mine.choose({Collective::kAllReduce, 1023}, two)->slot_bytes, 0U);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1023}, std::size_t{2048}, std::size_t{1} << 30}) {
    EXPECT_EQ(chosen(mine, Collective::kAllReduce, bytes, two), chosen(selector(), Collective::kAllReduce, bytes, two));
  }
}

TEST(Selector, conditions_depend_on_the_group) {
  const Selector mine = selector(
      "barrier[ranks=3-4]:0-inf=dissemination ; all_reduce[oversubscribed=yes, ranks=2-inf] : 0-inf=one_shot;"
      "broadcast[oversubscribed=no]:0-inf=packet;broadcast[oversubscribed=yes]:0-inf=direct");
  EXPECT_EQ(chosen(mine, Collective::kBarrier, 0, Topology::uniform(2)), "direct");
  EXPECT_EQ(chosen(mine, Collective::kBarrier, 0, Topology::uniform(3)), "dissemination");
  EXPECT_EQ(chosen(mine, Collective::kBarrier, 0, Topology::uniform(4)), "dissemination");
  EXPECT_EQ(chosen(mine, Collective::kBarrier, 0, Topology::uniform(5)), "direct");
  EXPECT_EQ(chosen(mine, Collective::kAllReduce, 1 << 20, crowded(4)), "one_shot");
  EXPECT_EQ(chosen(mine, Collective::kAllReduce, 1 << 20, Topology::uniform(4)), "two_shot");
  EXPECT_EQ(chosen(mine, Collective::kBroadcast, 1 << 20, Topology::uniform(4)), "packet");
  EXPECT_EQ(chosen(mine, Collective::kBroadcast, 8, crowded(4)), "direct");
}

TEST(Selector, registered_calls_have_their_own_rules_and_algorithms) {
  const Topology four = Topology::uniform(4);
  const auto chosen_for = [&](std::string_view table, SelectorCall call) {
    return selector(table).choose(call, four)->algorithm->name;
  };
  const SelectorCall apart{.collective = Collective::kAllToAll, .bytes = 1 << 20, .registered = true};
  SelectorCall in_place = apart, ordinary = apart, small = apart;
  in_place.in_place = true;
  ordinary.registered = false;
  small.bytes = 64;
  EXPECT_EQ(chosen_for("", apart), "zero_copy");
  EXPECT_EQ(chosen_for("", in_place), "direct");
  EXPECT_EQ(chosen_for("", ordinary), "direct");
  EXPECT_EQ(chosen_for("", small), "packet");
  EXPECT_EQ(chosen_for("all_to_all:0-inf=zero_copy", ordinary), "direct");
  SelectorCall readable = ordinary;
  readable.readable = true;
  EXPECT_EQ(chosen_for("", readable), "zero_copy");
  readable.collective = Collective::kAllReduce;
  EXPECT_EQ(chosen_for("all_reduce:0-inf=two_shot_zero_copy", readable), "two_shot") << "it adds in peers' buffers";
  EXPECT_EQ(chosen_for("all_to_all[registered=no]:0-inf=bruck", ordinary), "bruck");
  EXPECT_EQ(chosen_for("all_to_all[registered=no]:0-inf=bruck", apart), "zero_copy");
  EXPECT_EQ(chosen_for("all_to_all[registered=yes,ranks=1-4]:0-inf=pairwise", in_place), "pairwise");
  const Selector defaults = selector();
  for (const SelectorRow& row : defaults.rows()) {
    if (row.collective != Collective::kAllToAll || row.algorithm->buffers == Buffers::kAnywhere) continue;
    const bool for_all = row.registered == SelectorRow::Registered::kAny;
    EXPECT_EQ(to_string(row), for_all ? "all_to_all:64k-2m=zero_copy" : "all_to_all[registered=yes]:2k-inf=zero_copy");
    EXPECT_EQ(defaults.judge(row, ordinary, four), for_all ? RowVerdict::kNeedsWindows : RowVerdict::kRegistered);
    EXPECT_EQ(defaults.judge(row, in_place, four), RowVerdict::kNeedsApart);
  }
}

TEST(Selector, blanks_newlines_and_empty_rules_are_ignored) {
  const auto rows =
      parse_table("\n all_reduce : 0 - 4k = packet , 4k-inf = two_shot @ 1m ;;\n barrier:0-inf=direct;\n");
  ASSERT_TRUE(rows.ok()) << rows.status().to_string();
  ASSERT_EQ(rows->rows.size(), 3U);
  EXPECT_EQ(rows->rows[1].slot_bytes, std::size_t{1} << 20);
  EXPECT_TRUE(parse_table("")->rows.empty());
  EXPECT_TRUE(parse_table(default_table()).ok());
}

TEST(Selector, a_request_without_a_row_is_not_found) {
  const Selector defaults = selector();
  const auto choice =
      defaults.choose({Collective::kAllReduce, std::numeric_limits<std::size_t>::max()}, Topology::uniform(2));
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(choice.status().message(), AllOf(HasSubstr("no row for all_reduce"), HasSubstr("on 2 ranks")));
}

TEST(Selector, deterministic_canonical_skips_other_orders_regardless_of_its_position) {
  const Topology two = Topology::uniform(2);
  EXPECT_EQ(chosen(selector("all_reduce:0-inf=ring"), Collective::kAllReduce, 1 << 20, two), "ring");
  for (const char* table : {"deterministic=canonical;all_reduce:0-inf=ring;all_gather:0-inf=ring",
                            "all_reduce:0-inf=ring;all_gather:0-inf=ring; deterministic = canonical"}) {
    const Selector mine = selector(table);
    EXPECT_EQ(chosen(mine, Collective::kAllReduce, 1 << 20, two), "two_shot");
    EXPECT_EQ(chosen(mine, Collective::kAllGather, 1 << 20, two), "ring") << "it adds up nothing";
  }
}

TEST(Selector, the_default_table_has_canonical_sums_only) {
  const auto defaults = parse_table(default_table());
  ASSERT_TRUE(defaults.ok());
  for (const SelectorRow& row : defaults->rows)
    if (!row.algorithm->is_library) {
      EXPECT_TRUE(row.algorithm->order == Order::kNone || row.algorithm->order == Order::kCanonical)
          << row.algorithm->name;
    }
}

TEST(Selector, the_default_table_has_the_algorithms_whose_rows_say_when_it_selects_them) {
  const auto defaults = parse_table(default_table());
  ASSERT_TRUE(defaults.ok());
  for (const AlgorithmEntry& entry : algorithms()) {
    const bool is_selected = std::any_of(defaults->rows.begin(), defaults->rows.end(),
                                         [&](const SelectorRow& row) { return row.algorithm == &entry; });
    EXPECT_EQ(is_selected, entry.description.selected != AlgorithmDescription::kByName)
        << to_string(entry.collective) << " " << entry.name;
  }
}

TEST(Selector, sums_on_gpus_read_buffers_in_windows_directly) {
  const auto chosen_for = [](SelectorCall call, int ranks, std::string_view table = "") {
    call.collective = Collective::kAllReduce;
    call.memory = DeviceType::kCuda;
    call.has_nccl = call.has_plans = true;
    return selector(table).choose(call, Topology::uniform(ranks)).value().algorithm->name;
  };
  const auto registered = [](std::size_t bytes) { return SelectorCall{.bytes = bytes, .registered = true}; };
  const auto in_place = [&](std::size_t bytes) {
    SelectorCall call = registered(bytes);
    call.in_place = true;
    return call;
  };
  EXPECT_EQ(chosen_for(registered(8 << 10), 8), "packet");
  EXPECT_EQ(chosen_for(registered(16 << 10), 8), "one_shot_zero_copy");
  EXPECT_EQ(chosen_for(in_place(16 << 10), 8), "two_shot_zero_copy");
  EXPECT_EQ(chosen_for(registered(256 << 10), 8), "two_shot_zero_copy");
  EXPECT_EQ(chosen_for(registered(256 << 10), 4), "one_shot_zero_copy");
  EXPECT_EQ(chosen_for(registered(512 << 10), 4), "two_shot_zero_copy");
  EXPECT_EQ(chosen_for(registered(1 << 20), 2), "one_shot_zero_copy");
  EXPECT_EQ(chosen_for(in_place(1 << 20), 2), "two_shot_zero_copy");
  EXPECT_EQ(chosen_for(registered(8 << 20), 2), "nccl");
  EXPECT_EQ(chosen_for(registered(1 << 20), 9), "nccl");
  EXPECT_EQ(chosen_for({.bytes = 64 << 10}, 8), "two_shot_packet") << "ordinary buffers";
  EXPECT_EQ(chosen_for({.bytes = 64 << 10}, 2), "nccl");
  EXPECT_EQ(chosen_for({.bytes = 1 << 20}, 8), "nccl");
  EXPECT_EQ(chosen_for(registered(1 << 20), 8, "deterministic=canonical"), "two_shot_zero_copy");
}

TEST(Selector, calls_on_gpus_have_their_own_rules_by_capability) {
  const Topology two = Topology::uniform(2), sixteen = Topology::uniform(16);
  const auto chosen_for = [](std::string_view table, SelectorCall call, const Topology& topology) -> std::string {
    const auto choice = selector(table).choose(call, topology);
    return choice.ok() ? std::string(choice->algorithm->name) : "none";
  };
  const SelectorCall small{.collective = Collective::kAllReduce,
                           .bytes = 8192,
                           .memory = DeviceType::kCuda,
                           .has_nccl = true,
                           .has_plans = true};
  SelectorCall large = small, without_plans = small, without_nccl = small, with_neither = small;
  large.bytes = 1 << 20;
  without_plans.has_plans = false;
  without_nccl.has_nccl = with_neither.has_nccl = with_neither.has_plans = false;
  EXPECT_EQ(chosen_for("", small, two), "packet");
  EXPECT_EQ(chosen_for("", large, two), "nccl");
  EXPECT_EQ(chosen_for("", without_plans, two), "nccl");
  EXPECT_EQ(chosen_for("", without_nccl, two), "packet");
  EXPECT_EQ(chosen_for("", with_neither, two), "none");
  without_nccl.bytes = 1 << 20;
  EXPECT_EQ(chosen_for("", without_nccl, two), "two_shot");
  SelectorCall middling = small;
  middling.bytes = 32 << 10;
  EXPECT_EQ(chosen_for("", middling, two), "packet");
  EXPECT_EQ(chosen_for("", middling, sixteen), "nccl") << "packets go to every rank";
  // Users' rules are for the CPU unless they say otherwise.
  EXPECT_EQ(chosen_for("all_reduce:0-inf=ring", small, two), "packet");
  EXPECT_EQ(chosen_for("all_reduce[memory=cuda]:0-inf=ring", small, two), "ring");
  EXPECT_EQ(chosen_for("all_reduce[memory=cuda]:0-inf=ring", {.collective = Collective::kAllReduce, .bytes = 8}, two),
            "packet");
  EXPECT_EQ(chosen_for("deterministic=canonical", large, two), "two_shot");
  EXPECT_EQ(to_string(parse_table("all_reduce[ranks=2-4,memory=cuda]:1k-inf=nccl")->rows[0]),
            "all_reduce[ranks=2-4,memory=cuda]:1k-inf=nccl");
  SelectorCall with_switch = large;
  with_switch.has_multicast = true;
  constexpr std::string_view kNvls = "all_reduce[memory=cuda]:16k-inf=nvls";
  EXPECT_EQ(chosen_for(kNvls, with_switch, two), "nvls");
  EXPECT_EQ(chosen_for(kNvls, large, two), "nccl") << "without a switch";
  EXPECT_EQ(chosen_for("deterministic=canonical;" + std::string(kNvls), with_switch, two), "two_shot");
  with_switch.op = ReduceOp::kAvg;
  EXPECT_EQ(chosen_for(kNvls, with_switch, two), "nccl") << "it does not divide";
  EXPECT_THAT(table_refusal("all_reduce:0-inf=nvls"), HasSubstr("nvls is for memory=cuda"));
  EXPECT_THAT(table_refusal("all_reduce:0-inf=nccl"),
              AllOf(HasSubstr("at character 18:"), HasSubstr("nccl is for memory=cuda")));
  EXPECT_THAT(table_refusal("all_reduce[memory=gpu]:0-inf=nccl"), HasSubstr("at character 19:"));
  EXPECT_EQ(
      make_plan(*algorithm_by_name(Collective::kAllReduce, "nccl").value(), two, {.collective = Collective::kAllReduce})
          .status()
          .code(),
      StatusCode::kUnsupported);
}

TEST(Selector, errors_give_the_location_and_the_nearest_name) {
  EXPECT_THAT(table_refusal("all_reduc:0-inf=packet"), AllOf(HasSubstr("at character 1:"), HasSubstr("all_reduce")));
  EXPECT_THAT(table_refusal("barrier:0-inf=direct;all_reduce:0-4k=paket"),
              AllOf(HasSubstr("at character 38:"), HasSubstr("\"packet\"")));
  EXPECT_THAT(table_refusal("all_reduce:0-4k=direct"),
              AllOf(HasSubstr("at character 17:"), HasSubstr("all_reduce algorithm")));
  EXPECT_THAT(table_refusal("all_reduce[rank=2-4]:0-4k=packet"),
              AllOf(HasSubstr("at character 12:"), HasSubstr("ranks")));
  EXPECT_THAT(table_refusal("all_reduce[oversubscribed=yess]:0-4k=packet"),
              AllOf(HasSubstr("at character 27:"), HasSubstr("\"yes\"")));
  EXPECT_THAT(table_refusal("all_reduce[ranks=4-2]:0-4k=packet"), HasSubstr("ranks 4-2 is an empty range"));
  EXPECT_THAT(table_refusal("all_reduce[hosts=3-2]:0-4k=packet"), HasSubstr("hosts 3-2 is an empty range"));
  EXPECT_THAT(table_refusal("all_reduce[ranks=0-2]:0-4k=packet"), HasSubstr("0 is not a number of ranks"));
  EXPECT_THAT(table_refusal("all_reduce:4q-8k=packet"),
              AllOf(HasSubstr("at character 12:"), HasSubstr("\"4q\" is not a size")));
  EXPECT_THAT(table_refusal("all_reduce:8k-4k=packet"),
              AllOf(HasSubstr("at character 12:"), HasSubstr("the range \"8k-4k\" is empty")));
  EXPECT_THAT(table_refusal("all_reduce:0-4k packet"),
              AllOf(HasSubstr("at character 17:"), HasSubstr("expected \"=\", found \"p\"")));
  EXPECT_THAT(table_refusal("all_reduce:0-4k="), HasSubstr("at character 17: expected an algorithm, found the end"));
  EXPECT_THAT(table_refusal("all_reduce:0-4k=packet@0"), HasSubstr("at least one byte"));
  EXPECT_THAT(table_refusal("all_reduce:0-4k=packet]"), HasSubstr("expected \",\" or \";\", found \"]\""));
  EXPECT_THAT(table_refusal("all_reduce 0-4k=packet"), HasSubstr("expected \":\""));
  EXPECT_THAT(table_refusal("deterministic=canonicle"),
              AllOf(HasSubstr("at character 15:"), HasSubstr("\"canonical\"")));
  EXPECT_FALSE(Selector::create("nonsense").ok());
}

TEST(Selector, any_text_is_parsed_or_rejected) {
  std::mt19937 random(1);
  const std::string words = "all_reduce barrier[ranks=1-2,oversubscribed=yes]:0-4k=packet,direct@;inf \n";
  for (int i = 0; i < 20000; ++i) {
    std::string text(random() % 40, ' ');
    for (char& letter : text) letter = words[random() % words.size()];
    const auto rows = parse_table(text);
    EXPECT_TRUE(rows.ok() || rows.status().message().find("at character") != std::string::npos) << text;
  }
}

TEST(Selector, a_row_is_written_as_it_was_read) {
  for (const std::string_view text :
       {"all_reduce:0-2k=packet", "broadcast[ranks=9-inf]:1536-inf=direct", "all_gather[ranks=2-8]:1m-3g=ring@256k",
        "all_to_all[ranks=3-3,oversubscribed=yes]:0-1=bruck", "barrier[oversubscribed=no]:0-inf=direct",
        "all_reduce[ranks=2-inf,oversubscribed=no,registered=yes]:4k-inf=two_shot_zero_copy@1m"}) {
    const auto table = parse_table(text);
    ASSERT_TRUE(table.ok()) << table.status().to_string();
    EXPECT_EQ(to_string(table->rows.at(0)), text);
  }
}

TEST(Selector, judges_each_row_by_the_first_condition_that_fails) {
  const Selector table = selector(
      "all_gather:0-inf=direct;all_reduce[ranks=8-inf]:0-1=ring;all_reduce[oversubscribed=yes]:0-1=ring;"
      "all_reduce:0-1k=ring;all_reduce:1k-2k=ring;all_reduce:1k-2k=packet;deterministic=canonical");
  const std::vector<RowVerdict> expected = {RowVerdict::kOtherCollective, RowVerdict::kRanks,
                                            RowVerdict::kOversubscribed,  RowVerdict::kBytes,
                                            RowVerdict::kOrder,           RowVerdict::kMatches};
  const std::size_t first = table.rows().size() - expected.size();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(table.judge(table.rows()[first + i], {Collective::kAllReduce, 1500}, Topology::uniform(4)), expected[i])
        << i;
  }
}

}  // namespace
}  // namespace accord::plan
