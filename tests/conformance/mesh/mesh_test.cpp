// Groups of a mesh, created in one step: they compute, fail and end independently, and ranks that disagree learn of
// it together.
#include "accord/mesh.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using ::testing::HasSubstr;
using testing::run_thread_ranks;

class Meshes : public ::testing::TestWithParam<std::string> {
 protected:
  CommunicatorOptions options() const {
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(60);
    options.transport = GetParam();
    return options;
  }
};

MeshPlan plan_of(const std::string& text, int world_size) {
  return *MeshPlan::create(*parse_mesh_config(text, {.world_size = world_size}));
}

// Sums powers of two, which shows the ranks that took part.
std::int64_t sum_over(Communicator group, Rank rank) {
  std::int64_t value = std::int64_t{1} << rank;
  EXPECT_TRUE(group.all_reduce(Buffer{&value, 1, DType::kInt64}, ReduceOp::kSum).ok());
  return value;
}
std::int64_t bits_of(const std::vector<Rank>& ranks) {
  std::int64_t bits = 0;
  for (const Rank rank : ranks) bits |= std::int64_t{1} << rank;
  return bits;
}

TEST_P(Meshes, every_group_has_its_planned_ranks) {
  const MeshPlan plan = plan_of("tp=2,pp=2,cp=2,ep=2,etp=1,optimizer_instances=2,gloo_groups=1,all_gather_group=1", 8);
  run_thread_ranks(8, options(), [&](Communicator comm) {
    const Result<Mesh> mesh = Mesh::create(plan, comm);
    ASSERT_TRUE(mesh.ok()) << mesh.status().to_string();
    ASSERT_EQ(mesh->rank(), comm.rank());
    for (std::size_t family = 0; family < plan.families().size(); ++family) {
      const std::vector<Rank> ranks = plan.ranks_of(static_cast<int>(family), comm.rank());
      Result<std::optional<Communicator>> group = mesh->group(plan.families()[family].name);
      ASSERT_TRUE(group.ok()) << group.status().to_string();
      ASSERT_EQ(group->has_value(), !ranks.empty()) << plan.families()[family].name;
      if (ranks.empty()) continue;
      ASSERT_EQ((*group)->size(), static_cast<int>(ranks.size()));
      ASSERT_EQ(ranks[static_cast<std::size_t>((*group)->rank())], comm.rank());
      ASSERT_EQ(sum_over(**group, comm.rank()), bits_of(ranks)) << plan.families()[family].name;
    }
    // Families with the same ranks and options share a group; the family for all_gathers has its own group.
    const auto id = [&](const char* family) { return (*mesh->group(family))->group().get(); };
    ASSERT_EQ(id("dp_cp"), id("dp_cp_gloo"));
    ASSERT_NE(id("dp_cp"), id("dp_cp_ag"));
  });
}

TEST_P(Meshes, groups_of_one_rank_have_their_own_memory) {
  // Different options give a rank several groups of itself alone, next to each other and to the groups of two.
  MeshConfig config = *parse_mesh_config("tp=2", {.world_size = 2});
  config.options["pp"].timeout_seconds = 7;
  config.options["ep"].timeout_seconds = 8;
  const MeshPlan plan = *MeshPlan::create(config);
  run_thread_ranks(2, options(), [&](Communicator comm) {
    const Result<Mesh> mesh = Mesh::create(plan, comm);
    ASSERT_TRUE(mesh.ok()) << mesh.status().to_string();
    std::vector<Communicator> groups;
    for (const char* family : {"pp", "ep", "cp", "tp"}) groups.push_back(**mesh->group(family));
    ASSERT_NE(groups[0].group(), groups[1].group());
    for (int round = 0; round < 3; ++round) {
      for (Communicator& group : groups) {
        std::vector<float> values(300000, static_cast<float>(comm.rank() + 1));
        std::vector<float> gathered(values.size() * static_cast<std::size_t>(group.size()));
        ASSERT_TRUE(group.all_reduce(Buffer{values.data(), values.size(), DType::kFloat32}, ReduceOp::kSum).ok());
        const float expected = group.size() == 2 ? 3 : static_cast<float>(comm.rank() + 1);
        ASSERT_EQ(values, std::vector<float>(300000, expected));
        ASSERT_TRUE(group
                        .all_gather(ConstBuffer{values.data(), values.size(), DType::kFloat32},
                                    Buffer{gathered.data(), gathered.size(), DType::kFloat32})
                        .ok());
        ASSERT_EQ(gathered, std::vector<float>(gathered.size(), expected));
        ASSERT_TRUE(group.barrier().ok());
      }
    }
  });
  // A mesh whose only families have one rank.
  const std::vector<MeshAxis> axes = {{"a", 1}, {"b", 2}};
  const MeshPlan lonely = *MeshPlan::of_axes(axes, std::vector<std::vector<std::string>>{{"a"}});
  run_thread_ranks(2, options(), [&](Communicator comm) {
    const Result<Mesh> mesh = Mesh::create(lonely, comm);
    ASSERT_TRUE(mesh.ok()) << mesh.status().to_string();
    Communicator alone = **mesh->group("a");
    for (int i = 0; i < 10; ++i) ASSERT_EQ(sum_over(alone, comm.rank()), std::int64_t{1} << comm.rank());
  });
}

TEST_P(Meshes, a_rank_that_declines_is_reported_on_all_others) {
  const MeshPlan plan = plan_of("tp=2", 4);
  run_thread_ranks(4, options(), [&](Communicator comm) {
    if (comm.rank() == 2) {
      ASSERT_TRUE(Mesh::decline(comm, "it has no plan").ok());
    } else {
      const Status status = Mesh::create(plan, comm).status();
      ASSERT_EQ(status.code(), StatusCode::kPeerLost);
      ASSERT_EQ(status.ranks(), std::vector<Rank>{2});
      ASSERT_THAT(status.message(), HasSubstr("rank 2 does not take part: it has no plan"));
    }
    ASSERT_TRUE(Mesh::create(plan, comm).ok());
  });
}

TEST_P(Meshes, groups_carry_messages_also_if_only_some_ranks_use_them) {
  const MeshPlan plan = plan_of("pp=4", 4);
  run_thread_ranks(4, options(), [&](Communicator comm) {
    Result<Mesh> mesh = Mesh::create(plan, comm);
    ASSERT_TRUE(mesh.ok()) << mesh.status().to_string();
    // Only two of the four ranks use the group; the others never create it.
    if (comm.rank() < 2) {
      Communicator pp = **mesh->group("pp");
      std::vector<float> values(100000, static_cast<float>(comm.rank()));
      const Buffer buffer{values.data(), values.size(), DType::kFloat32};
      ASSERT_TRUE((comm.rank() == 0 ? pp.recv(buffer, 1) : pp.send(buffer, 0)).ok());
      ASSERT_EQ(values, std::vector<float>(100000, 1));
    }
    ASSERT_TRUE(comm.barrier().ok());
    Communicator embedding = comm.rank() == 0 || comm.rank() == 3 ? **mesh->group("embd") : comm;
    if (embedding.size() == 2) {
      ASSERT_EQ(sum_over(embedding, comm.rank()), 0b1001);
    }
    Result<std::optional<Communicator>> half = (**mesh->group("pp")).split(comm.rank() / 2, comm.rank(), options());
    ASSERT_TRUE(half.ok()) << half.status().to_string();
    ASSERT_EQ(sum_over(**half, comm.rank()), comm.rank() < 2 ? 0b11 : 0b1100);
  });
}

TEST_P(Meshes, groups_outlive_the_mesh_and_close_separately) {
  const MeshPlan plan = plan_of("tp=2,dp=2", 4);
  run_thread_ranks(4, options(), [&](Communicator comm) {
    std::optional<Communicator> dp;
    {
      Result<Mesh> mesh = Mesh::create(plan, comm);
      ASSERT_TRUE(mesh.ok()) << mesh.status().to_string();
      dp = *mesh->group("dp");
      if (comm.rank() < 2) {
        Communicator tp = **mesh->group("tp");
        if (comm.rank() == 0) {
          tp.close();
        } else {
          const Status lost = tp.barrier();
          ASSERT_EQ(lost.code(), StatusCode::kPeerLost) << lost.to_string();
          ASSERT_EQ(lost.ranks(), std::vector<Rank>{0});
        }
      }
    }
    ASSERT_EQ(sum_over(*dp, comm.rank()), comm.rank() % 2 == 0 ? 0b101 : 0b1010);
  });
}

TEST_P(Meshes, a_closed_mesh_gives_no_groups_and_closes_its_existing_groups) {
  const MeshPlan plan = plan_of("tp=2", 2);
  run_thread_ranks(2, options(), [&](Communicator comm) {
    Result<Mesh> mesh = Mesh::create(plan, comm);
    ASSERT_TRUE(mesh.ok()) << mesh.status().to_string();
    Communicator tp = **mesh->group("tp");
    ASSERT_EQ(sum_over(tp, comm.rank()), 0b11);
    mesh->close();
    mesh->close();
    ASSERT_EQ(tp.barrier().code(), StatusCode::kClosed);
    ASSERT_EQ(mesh->group("tp").status().code(), StatusCode::kClosed);
    ASSERT_EQ(mesh->group("tpp").status().code(), StatusCode::kNotFound);
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_P(Meshes, a_rank_that_ends_its_mesh_leaves_groups_that_it_never_created) {
  const MeshPlan plan = plan_of("tp=2,pp=2", 4);
  for (const bool closes : {true, false}) {
    run_thread_ranks(4, options(), [&](Communicator comm) {
      std::optional<Mesh> mesh = *Mesh::create(plan, comm);
      Communicator pp = **mesh->group("pp");
      if (comm.rank() == 1) {
        if (closes) mesh->close();
        mesh.reset();
      } else {
        const Status status = (**mesh->group("tp")).barrier();
        if (comm.rank() == 0) {
          ASSERT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
          ASSERT_EQ(status.ranks(), std::vector<Rank>{1});
        } else {
          ASSERT_TRUE(status.ok()) << status.to_string();
        }
      }
      // Existing groups stay usable if the mesh was destroyed without close().
      if (comm.rank() % 2 == 0 || !closes) {
        ASSERT_EQ(sum_over(pp, comm.rank()), comm.rank() % 2 == 0 ? 0b101 : 0b1010);
      }
      ASSERT_TRUE(comm.barrier().ok());
    });
  }
}

// Rank 1 creates neither of its groups before it aborts the communicator, and rank 3 destroys its mesh.
TEST_P(Meshes, aborting_the_communicator_ends_the_groups_of_its_meshes) {
  const MeshPlan plan = plan_of("tp=2,pp=2", 4);
  run_thread_ranks(4, options(), [&](Communicator comm) {
    std::optional<Mesh> mesh = *Mesh::create(plan, comm);
    if (comm.rank() == 1) {
      comm.abort("enough");
      const Status none = mesh->group("tp").status();
      ASSERT_EQ(none.code(), StatusCode::kAborted) << none.to_string();
      ASSERT_THAT(none.message(), HasSubstr("enough"));
      return;
    }
    Communicator tp = **mesh->group("tp");
    Communicator pp = **mesh->group("pp");
    if (comm.rank() == 3) mesh.reset();
    const Status status = comm.rank() == 0 ? tp.barrier() : comm.rank() == 3 ? pp.barrier() : Status();
    ASSERT_EQ(status.code(), comm.rank() == 2 ? StatusCode::kOk : StatusCode::kPeerLost) << status.to_string();
    if (comm.rank() == 2) {
      ASSERT_EQ(tp.state(), CommunicatorState::kReady);
      const Status told = tp.barrier();  // until rank 3 aborts
      ASSERT_EQ(told.code(), StatusCode::kAborted) << told.to_string();
      ASSERT_THAT(told.message(), HasSubstr("the last"));
    }
    if (comm.rank() == 3) {
      comm.abort("the last");
      ASSERT_EQ(tp.barrier().code(), StatusCode::kAborted);
    }
  });
}

TEST_P(Meshes, several_meshes_coexist_and_one_may_cover_some_ranks) {
  const MeshPlan all = plan_of("tp=4", 4), some = plan_of("tp=2,rank_offset=1", 2);
  run_thread_ranks(4, options(), [&](Communicator comm) {
    Result<Mesh> first = Mesh::create(all, comm, {.name = "first"});
    Result<Mesh> second = Mesh::create(some, comm, {.name = "second"});
    ASSERT_TRUE(first.ok()) << first.status().to_string();
    ASSERT_TRUE(second.ok()) << second.status().to_string();
    const bool is_in = comm.rank() == 1 || comm.rank() == 2;
    ASSERT_EQ(second->has_groups(), is_in);
    ASSERT_EQ(second->rank(), comm.rank());
    ASSERT_EQ((*second->group("tp")).has_value(), is_in);
    if (is_in) {
      ASSERT_EQ(sum_over(**second->group("tp"), comm.rank()), 0b110);
    }
    ASSERT_EQ(sum_over(**first->group("tp"), comm.rank()), 0b1111);
    ASSERT_EQ((**first->group("tp")).name(), "first.mp");  // named after the first family of these ranks
  });
}

TEST_P(Meshes, plans_that_differ_are_an_error_on_all_ranks_that_quotes_both) {
  run_thread_ranks(3, options(), [&](Communicator comm) {
    const MeshPlan plan = plan_of(comm.rank() == 1 ? "cp=3" : "tp=3", 3);
    const Status status = Mesh::create(plan, comm).status();
    ASSERT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    ASSERT_THAT(status.message(), HasSubstr(comm.rank() == 1 ? "rank 0 has" : "rank 1 has"));
    for (const char* word : {"cp=3", "tp=3", "cp=1", "tp=1"}) ASSERT_THAT(status.message(), HasSubstr(word));
    ASSERT_THAT(status.message(), ::testing::Not(HasSubstr("world_size")));
    ASSERT_TRUE(comm.barrier().ok());  // the communicator still works
  });
}

TEST_P(Meshes, options_are_applied_or_reported_or_rejected_in_strict_mode) {
  MeshConfig config{.world_size = 2, .tp = 2};
  config.options["tp"].max_ctas = 8;
  config.options["tp"].timeout_seconds = 0.25;
  config.options["dp"].backend = "nccl";
  const MeshPlan plan = *MeshPlan::create(config);
  run_thread_ranks(2, options(), [&](Communicator comm) {
    Result<Mesh> mesh = Mesh::create(plan, comm);
    ASSERT_TRUE(mesh.ok()) << mesh.status().to_string();
    std::vector<std::string> reported;
    for (const MeshOptionReport& report : mesh->report())
      reported.push_back(report.key + "." + report.option + "=" + report.value + " " +
                         std::string(to_string(report.fate)));
    ASSERT_THAT(reported, ::testing::UnorderedElementsAre("dp.backend=nccl translated", "tp.max_ctas=8 not applicable",
                                                          "tp.timeout_seconds=0.25 applied"));
    if (comm.rank() == 0) {
      const auto began = std::chrono::steady_clock::now();
      ASSERT_EQ((**mesh->group("tp")).barrier().code(), StatusCode::kTimeout);
      ASSERT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
    }
    const Status refused = Mesh::create(plan, comm, {.strict = true}).status();
    ASSERT_EQ(refused.code(), StatusCode::kUnsupported);
    ASSERT_THAT(refused.message(), HasSubstr("max_ctas=8 of \"tp\" has no effect: CPU ranks have no blocks"));
  });
}

TEST_P(Meshes, strict_on_one_rank_alone_is_an_error_on_all) {
  MeshConfig config{.world_size = 2, .tp = 2};
  config.options["tp"].max_ctas = 8;
  const MeshPlan plan = *MeshPlan::create(config);
  run_thread_ranks(2, options(), [&](Communicator comm) {
    const Status status = Mesh::create(plan, comm, {.strict = comm.rank() == 1}).status();
    ASSERT_EQ(status.code(), comm.rank() == 1 ? StatusCode::kUnsupported : StatusCode::kPeerLost);
    ASSERT_THAT(status.message(), HasSubstr("has no effect"));
  });
}

TEST_P(Meshes, a_plan_for_more_ranks_than_the_communicator_has_is_rejected) {
  const MeshPlan plan = plan_of("tp=2,rank_offset=1", 2);
  run_thread_ranks(1, options(), [&](Communicator comm) {
    const Status status = Mesh::create(plan, comm).status();
    ASSERT_EQ(status.code(), StatusCode::kInvalidArgument);
    ASSERT_THAT(status.message(), HasSubstr("the plan has ranks 1 to 2, but group"));
  });
}

INSTANTIATE_TEST_SUITE_P(All, Meshes, ::testing::Values("inproc", "shm", "ucx"),
                         [](const auto& given) { return given.param; });

}  // namespace
}  // namespace accord
