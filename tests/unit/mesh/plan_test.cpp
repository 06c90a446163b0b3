// Rank lists checked by value: those of Megatron's parallel_state; and invalid meshes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "accord/mesh.hpp"

namespace accord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Lists = std::vector<std::vector<Rank>>;

MeshPlan plan_of(const std::string& text, int world_size) {
  const Result<MeshConfig> config = parse_mesh_config(text, {.world_size = world_size});
  EXPECT_TRUE(config.ok()) << config.status().to_string();
  const Result<MeshPlan> plan = MeshPlan::create(config.ok() ? *config : MeshConfig());
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return *plan;
}

Lists groups(const MeshPlan& plan, const std::string& family) {
  const Result<int> found = plan.family(family);
  EXPECT_TRUE(found.ok()) << found.status().to_string();
  return plan.all_groups(*found);
}

Lists first(const Lists& lists, std::size_t count) { return {lists.begin(), lists.begin() + static_cast<long>(count)}; }

TEST(MeshPlan, tensor_and_pipeline_parallel) {
  const MeshPlan plan = plan_of("tp=2,pp=4", 16);
  EXPECT_EQ(groups(plan, "dp"), (Lists{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(groups(plan, "pp"), (Lists{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}));
  EXPECT_EQ(groups(plan, "embd"), (Lists{{0, 12}, {1, 13}, {2, 14}, {3, 15}}));
  EXPECT_EQ(groups(plan, "pos_embd"), (Lists{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(groups(plan, "mp"), (Lists{{0, 1, 4, 5, 8, 9, 12, 13}, {2, 3, 6, 7, 10, 11, 14, 15}}));
  EXPECT_EQ(groups(plan, "tp").size(), 8U);
}

TEST(MeshPlan, context_and_expert_parallel_with_two_optimizer_instances) {
  const MeshPlan plan = plan_of("tp=2,cp=2,pp=2,ep=2,etp=1,optimizer_instances=2", 16);
  const Lists dp_cp = {{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}};
  EXPECT_EQ(groups(plan, "dp_cp"), dp_cp);
  EXPECT_EQ(first(groups(plan, "intra_dp_cp"), 4), (Lists{{0, 2}, {4, 6}, {1, 3}, {5, 7}}));
  EXPECT_EQ(first(groups(plan, "cp"), 4), (Lists{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(first(groups(plan, "dp"), 4), (Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(groups(plan, "pp").front(), (std::vector<Rank>{0, 8}));
  EXPECT_EQ(groups(plan, "pp").back(), (std::vector<Rank>{7, 15}));
  EXPECT_EQ(groups(plan, "mp"), (Lists{{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}}));
  EXPECT_EQ(groups(plan, "tp_cp").front(), (std::vector<Rank>{0, 1, 2, 3}));
  EXPECT_EQ(first(groups(plan, "ep"), 2), (Lists{{0, 1}, {2, 3}}));
  EXPECT_EQ(groups(plan, "ep_dp"), dp_cp);
}

TEST(MeshPlan, the_order_decides_which_ranks_are_adjacent) {
  const MeshPlan other = plan_of("tp=2,pp=2,order=tp-cp-pp-ep-dp", 8);
  EXPECT_EQ(groups(other, "dp"), (Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(groups(other, "pp"), (Lists{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  const MeshPlan usual = plan_of("tp=2,pp=2,ep=2", 8);
  EXPECT_EQ(groups(usual, "dp"), (Lists{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(groups(usual, "pp"), (Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(groups(usual, "ep"), (Lists{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
}

TEST(MeshPlan, gtp_follows_tp) {
  for (const char* text : {"tp=2,gtp=2", "tp=2,gtp=2,order=tp-gtp_remat-cp-ep-dp-pp"}) {
    const MeshPlan plan = plan_of(text, 8);
    EXPECT_EQ(groups(plan, "gtp"), (Lists{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
    EXPECT_EQ(groups(plan, "dp"), (Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
    EXPECT_EQ(groups(plan, "mp"), (Lists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
    EXPECT_EQ(groups(plan, "dp_gtp"), (Lists{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  }
}

TEST(MeshPlan, context_parallel_in_levels_and_hybrid) {
  const MeshPlan levels = plan_of("cp=8,hierarchical_cp=2x4", 8);
  EXPECT_EQ(groups(levels, "hcp_0"), (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(groups(levels, "hcp_1"), (Lists{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  const MeshPlan hybrid = plan_of("cp=4,hybrid_cp=true", 8);
  EXPECT_EQ(groups(hybrid, "hybrid_dp_cp_2"), (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(groups(hybrid, "hybrid_dp_cp_4"), (Lists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_FALSE(hybrid.family("hybrid_dp_cp_8").ok());
}

TEST(MeshPlan, may_start_at_any_rank_of_the_job) {
  const MeshPlan plan = plan_of("tp=2,rank_offset=4", 4);
  EXPECT_EQ(groups(plan, "dp"), (Lists{{4, 6}, {5, 7}}));
  EXPECT_EQ(plan.ranks_of(*plan.family("tp"), 7), (std::vector<Rank>{6, 7}));
  EXPECT_EQ(*plan.coordinate("dp", 7), 1);
}

TEST(MeshPlan, may_have_only_named_axes) {
  const std::vector<MeshAxis> two = {{"tp", 2}, {"dp", 4}};
  const std::vector<std::vector<std::string>> tp = {{"tp"}};
  const Result<MeshPlan> plan = MeshPlan::of_axes(two, tp);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_EQ(plan->all_groups(0), (Lists{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  const std::vector<MeshAxis> three = {{"tp", 2}, {"cp", 2}, {"dp", 2}};
  const std::vector<std::vector<std::string>> families = {{"cp", "tp"}, {"dp"}};
  const Result<MeshPlan> cube = MeshPlan::of_axes(three, families);
  ASSERT_TRUE(cube.ok()) << cube.status().to_string();
  EXPECT_EQ(groups(*cube, "tp-cp"), (Lists{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(groups(*cube, "dp"), (Lists{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(MeshPlan, groups_of_a_rank_include_each_family_once) {
  const MeshPlan plan = plan_of("tp=2,cp=2,pp=2,ep=2,optimizer_instances=2,gloo_groups=true,all_gather_group=1", 32);
  for (Rank rank = 0; rank < 32; ++rank) {
    const std::vector<MeshGroup> mine = plan.groups_of(rank);
    std::vector<int> seen(plan.families().size(), 0);
    for (const MeshGroup& group : mine) {
      for (const int family : group.families) {
        ++seen[static_cast<std::size_t>(family)];
        EXPECT_EQ(plan.ranks_of(family, rank), group.ranks);
      }
    }
    for (std::size_t family = 0; family < seen.size(); ++family) {
      const Lists all = plan.all_groups(static_cast<int>(family));
      const auto has = [&](const std::vector<Rank>& ranks) { return std::count(ranks.begin(), ranks.end(), rank) > 0; };
      EXPECT_EQ(seen[family], std::count_if(all.begin(), all.end(), has)) << plan.families()[family].name;
      EXPECT_EQ(static_cast<int>(all.size()), plan.families()[family].groups) << plan.families()[family].name;
      EXPECT_EQ(static_cast<int>(all.front().size()), plan.families()[family].group_size);
    }
  }
  // The group for all_gathers is a separate one; the group for host tensors is the same.
  const std::vector<MeshGroup> mine = plan.groups_of(0);
  const auto of = [&](const char* name) {
    const int family = *plan.family(name);
    return std::find_if(mine.begin(), mine.end(), [&](const MeshGroup& group) {
      return std::count(group.families.begin(), group.families.end(), family) > 0;
    });
  };
  EXPECT_EQ(of("dp_cp"), of("dp_cp_gloo"));
  EXPECT_NE(of("dp_cp"), of("dp_cp_ag"));
}

TEST(MeshPlan, groups_with_different_options_are_not_shared) {
  MeshConfig config{.world_size = 4};
  const MeshPlan joined = *MeshPlan::create(config);
  config.options["dp"].max_ctas = 8;
  const MeshPlan apart = *MeshPlan::create(config);
  EXPECT_EQ(joined.groups_of(0).size() + 1, apart.groups_of(0).size());
  EXPECT_NE(joined.hash(), apart.hash());
  EXPECT_THAT(apart.text(), HasSubstr("dp.max_ctas=8"));
}

TEST(MeshPlan, is_equal_on_all_ranks_exactly_if_its_hash_is) {
  EXPECT_EQ(plan_of("tp=2,pp=2", 8).hash(), plan_of("pp=2,tp=2,dp=2", 8).hash());
  EXPECT_NE(plan_of("tp=2", 8).hash(), plan_of("tp=4", 8).hash());
  EXPECT_NE(plan_of("tp=2", 8).hash(), plan_of("tp=2,rank_offset=8", 8).hash());
}

TEST(MeshPlan, may_skip_the_stages_with_embeddings) {
  MeshConfig config{.world_size = 4, .pp = 4};
  config.embedding_stages = {0, 1, -1};
  config.position_embedding_stages = {};
  const MeshPlan plan = *MeshPlan::create(config);
  EXPECT_EQ(groups(plan, "embd"), (Lists{{0, 1, 3}}));
  EXPECT_FALSE(plan.family("pos_embd").ok());
  EXPECT_THAT(plan.ranks_of(*plan.family("embd"), 2), IsEmpty());
}

struct Refused {
  const char* text;
  int world_size;
  const char* why;
};
void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.text; }

class MeshRefused : public ::testing::TestWithParam<Refused> {};

TEST_P(MeshRefused, with_a_reason) {
  const Result<MeshConfig> config = parse_mesh_config(GetParam().text, {.world_size = GetParam().world_size});
  const Status status = config.ok() ? MeshPlan::create(*config).status() : config.status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(GetParam().why));
}

INSTANTIATE_TEST_SUITE_P(
    All, MeshRefused,
    ::testing::Values(
        Refused{"tp=3", 16, "tp = 3, which does not divide the 16 ranks of the mesh"},
        Refused{"tp=2,pp=4,cp=4", 16, "tp * cp * pp = 2 * 4 * 4 = 32"},
        Refused{"ep=3", 16, "ep = 3, which does not divide"},
        Refused{"tp=2,dp=4", 16, "dp is 4, expected 8: the 16 ranks divided by tp = 2"},
        Refused{"tp=0", 16, "tp is 0, expected 1 to 1048576"}, Refused{"tp=-2", 16, "tp is -2"},
        Refused{"tp=x", 16, "tp"}, Refused{"tp=99999999999", 16, "tp is 99999999999"},
        Refused{"tp", 16, "has no value"}, Refused{"tpp=2", 16, "did you mean \"tp\""},
        Refused{"tp=2,tp=2", 16, "\"tp\" appears twice"}, Refused{"", 0, "give world_size (--world) or dp"},
        Refused{"", 2 << 20, "world_size is 2097152"},
        Refused{"rank_offset=1048570", 16, "rank_offset 1048570 plus 16 ranks exceeds"},
        Refused{"order=tp-xp", 16, "unknown axis \"xp\""}, Refused{"order=tp-dp-tp", 16, "has axis tp twice"},
        Refused{"tp=2,order=dp-pp", 16, "tp is 2, but order \"dp-pp\" does not contain it"},
        // "tp" is part of another axis's name here.
        Refused{"tp=2,gtp=2,order=gtp_remat-cp-ep-dp-pp", 16, "does not contain it"},
        Refused{"cp=4,hierarchical_cp=2x4", 16, "hierarchical_cp is 2 * 4, which is not cp = 4"},
        Refused{"cp=4,hierarchical_cp=0x4", 16, "hierarchical_cp has a level of 0"},
        Refused{"optimizer_instances=3", 16, "optimizer_instances is 3, which does not divide dp * cp = 16"},
        Refused{"ep=8,optimizer_instances=4", 16, "does not divide dp of experts = 2"},
        Refused{"hybrid_cp=1", 10, "hybrid_cp needs dp * cp = 10 to be a multiple of 4"},
        Refused{"hybrid_cp=1", 3, "hybrid_cp needs dp * cp = 3 to be a multiple of 2"},
        Refused{"hybrid_cp=perhaps", 8, "hybrid_cp is \"perhaps\", expected true or false"},
        Refused{"pp=2,embedding_stages=0x2", 4, "embedding_stages contains stage 2, but the pipeline has 2 stages"},
        Refused{"tp=2,pp=2,cp=2,order=tp-cp-dp-pp-ep,ep=2", 16, "put pp last"}));

TEST(MeshPlan, invalid_options_are_rejected) {
  const auto why = [](const std::string& key, const MeshGroupOptions& options) {
    MeshConfig config{.world_size = 4};
    config.options[key] = options;
    return MeshPlan::create(config).status().message();
  };
  EXPECT_THAT(why("dpcp", {}), HasSubstr("unknown family \"dpcp\"; did you mean \"dp_cp\""));
  EXPECT_THAT(why("dp", {.max_ctas = 65}), HasSubstr("options of \"dp\": max_ctas is 65, expected 1 to 64"));
  EXPECT_THAT(why("dp", {.max_ctas = 4, .min_ctas = 8}), HasSubstr("min_ctas is 8, expected at most max_ctas"));
  EXPECT_THAT(why("dp", {.cga_cluster_size = 9}), HasSubstr("cga_cluster_size is 9"));
  EXPECT_THAT(why("dp", {.net_name = "tcp"}), HasSubstr("net_name is \"tcp\", expected \"IB\" or \"Socket\""));
  EXPECT_THAT(why("dp", {.timeout_seconds = 0.0}), HasSubstr("timeout_seconds is 0"));
  EXPECT_THAT(why("dp", {.timeout_seconds = 1e10}), HasSubstr("is 10000000000, expected 0.001 to 315360000"));
  EXPECT_THAT(why("dp", {.timeout_seconds = std::nan("")}), HasSubstr("timeout_seconds is nan"));
  EXPECT_EQ(why("dp", {.net_name = "ib", .timeout_seconds = 1.5}), "");
}

TEST(MeshPlan, invalid_axes_are_rejected) {
  const auto why = [](std::vector<MeshAxis> axes, std::vector<std::vector<std::string>> families, int offset = 0) {
    return MeshPlan::of_axes(axes, families, offset).status().message();
  };
  EXPECT_THAT(why({}, {}), HasSubstr("there is no axis"));
  EXPECT_THAT(why({{"tp", 2}, {"tp", 2}}, {}), HasSubstr("axis \"tp\" appears twice"));
  EXPECT_THAT(why({{"t-p", 2}}, {}), HasSubstr("\"t-p\" is not a valid name of an axis"));
  EXPECT_THAT(why({{"tp", 0}}, {}), HasSubstr("axis \"tp\" has 0 positions"));
  EXPECT_THAT(why({{"a", 1 << 20}, {"b", 2}}, {}), HasSubstr("more than 1048576 ranks"));
  EXPECT_THAT(why({{"tp", 2}}, {{"dp"}}), HasSubstr("unknown axis \"dp\""));
  EXPECT_THAT(why({{"tp", 2}}, {{}}), HasSubstr("contains no axis"));
  EXPECT_THAT(why({{"tp", 2}}, {{"tp", "tp"}}), HasSubstr("contains axis \"tp\" twice"));
  EXPECT_THAT(why({{"a", 2}, {"b", 2}}, {{"a", "b"}, {"b", "a"}}), HasSubstr("family \"a-b\" appears twice"));
  EXPECT_THAT(why({{"tp", 2}}, {}, -1), HasSubstr("rank_offset is -1"));
}

}  // namespace
}  // namespace accord
