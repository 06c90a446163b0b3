#include "sim/training.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "sim/pipeline.hpp"
#include "sim/simulate.hpp"
#include "unit/sim/machines_for_tests.hpp"

namespace accord::sim {
namespace {

// Ranks of tensor parallelism are adjacent, then those of data parallelism, then the stages.
TrainingGroups groups_of(int tp, int dp, int pp) {
  TrainingGroups groups;
  groups.tp = tp;
  groups.dp = groups.data_ranks = dp;
  groups.pp = pp;
  const auto add = [](std::vector<Members>& all, int first, int count, int distance) {
    std::vector<Rank> ranks(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) ranks[static_cast<std::size_t>(i)] = first + i * distance;
    all.push_back(std::make_shared<const std::vector<Rank>>(std::move(ranks)));
  };
  for (int stage = 0; stage < pp; ++stage) {
    for (int i = 0; i < dp; ++i) add(groups.tensor, (stage * dp + i) * tp, tp, 1);
    for (int i = 0; i < tp; ++i) add(groups.data, stage * dp * tp + i, dp, tp);
  }
  for (int i = 0; i < dp * tp; ++i) add(groups.pipeline, i, pp, dp * tp);
  return groups;
}

TrainingStep small_step(int microbatches, int virtual_stages) {
  TrainingStep training;
  training.model = {.layers = 8, .hidden = 64, .ffn = 256, .heads = 4, .kv_heads = 4, .vocabulary = 1};
  training.step = {.sequence = 32, .microbatches = microbatches, .virtual_stages = virtual_stages};
  return training;
}

// Communication costs nearly nothing, and computation much.
Machine fast_machine(int ranks_of_host) {
  Machine machine = testing::machine_of(ranks_of_host);
  machine.host.call_seconds = machine.host.times.seconds_per_step = machine.host.times.seconds_per_hop = 0;
  machine.host.times.touched = machine.host.times.exchanged = RateCurve(1e18);
  machine.host.flops_per_second = 1e6;
  machine.network.nic_bytes_per_second = 1e18;
  machine.network.message_seconds = machine.network.latency_seconds = 0;
  return machine;
}

Times run(const TrainingStep& training, const TrainingGroups& groups, const Machine& machine) {
  const Result<topology::Topology> topology = topology_of(machine, groups.tp * groups.dp * groups.pp);
  EXPECT_TRUE(topology.ok()) << topology.status().message();
  const Result<Schedule> schedule = training_schedule(training, groups, machine, *topology, std::size_t{1} << 20);
  EXPECT_TRUE(schedule.ok()) << schedule.status().message();
  const Result<Times> times = simulate(*schedule, machine, *topology, Sharing::kQueues);
  EXPECT_TRUE(times.ok()) << times.status().message();
  return *times;
}

TEST(Pipelines, alternate_forward_and_backward_passes) {
  using Order = std::vector<PipelineItem>;
  EXPECT_EQ(pipeline_order(0, 1, 1, 2), (Order{{true, 0}, {false, 0}, {true, 1}, {false, 1}}));
  EXPECT_EQ(pipeline_order(0, 2, 1, 3), (Order{{true, 0}, {true, 1}, {false, 0}, {true, 2}, {false, 1}, {false, 2}}));
  EXPECT_EQ(pipeline_order(1, 2, 1, 2), (Order{{true, 0}, {false, 0}, {true, 1}, {false, 1}}));
  // Megatron's order for the last of two stages with two chunks.
  EXPECT_EQ(pipeline_order(1, 2, 2, 2), (Order{{true, 0, 0},
                                               {true, 1, 0},
                                               {true, 0, 1},
                                               {false, 0, 1},
                                               {true, 1, 1},
                                               {false, 1, 1},
                                               {false, 0, 0},
                                               {false, 1, 0}}));
}

// The idle part of a pipeline with p stages, m microbatches and v virtual stages is (p - 1) / (v m) of the rest
// (Narayanan et al. 2021).
TEST(TrainingSteps, idle_as_long_as_the_published_formula_says) {
  for (const auto& [stages, microbatches, chunks] :
       {std::tuple{1, 4, 1}, {2, 4, 1}, {4, 8, 1}, {4, 4, 1}, {2, 4, 2}, {4, 8, 2}}) {
    const TrainingStep training = small_step(microbatches, chunks);
    const TrainingGroups groups = groups_of(1, 1, stages);
    const double head = 6.0 * 32 * 64 * microbatches;  // of the vocabulary of one word, on the last stage alone
    const double flops = amount_of(training, groups).flops;
    const double ideal = (flops - head) / stages / 1e6;
    const double idle = 1 + (stages - 1.0) / (chunks * microbatches);
    EXPECT_NEAR(run(training, groups, fast_machine(1)).seconds, ideal * idle + head / 1e6, 0.02 * ideal)
        << stages << " " << microbatches << " " << chunks;
  }
}

TEST(TrainingSteps, compute_six_operations_for_each_parameter_and_token) {
  const TrainingStep training = small_step(2, 1);
  const double weights = 8 * (4 * 64 * 64 + 3 * 64 * 256) + 64;  // and the head
  const double scores = 8 * 3 * 2.0 * 32 * 64;                   // of a token: half of all pairs, two products
  const double tokens = 32 * 2 * 3;                              // of three data-parallel ranks
  for (const int tp : {1, 2}) {
    const TrainingAmount amount = amount_of(training, groups_of(tp, 3, 1));
    EXPECT_DOUBLE_EQ(amount.tokens, tokens);
    EXPECT_NEAR(amount.flops, tokens * (6 * weights + scores), 1e-9 * amount.flops);
  }
}

TEST(TrainingSteps, recompute_a_third_more) {
  TrainingStep training = small_step(2, 1);
  const TrainingGroups groups = groups_of(1, 1, 1);
  const double once = run(training, groups, fast_machine(1)).seconds;
  training.step.recompute = true;
  EXPECT_NEAR(run(training, groups, fast_machine(1)).seconds, 4.0 / 3 * once, 0.01 * once);
}

// Two hosts of one rank each: all gradients go out and come in as half of 4 bytes, and the parameters as half of 2.
TEST(TrainingSteps, reduce_gradients_and_gather_parameters) {
  TrainingStep training = small_step(1, 1);
  training.model.vocabulary = 100;
  const double parameters = 8 * (4 * 64 * 64 + 3 * 64 * 256 + 2 * 64) + 2 * 100 * 64;
  for (const bool overlaps : {false, true}) {
    training.step.overlap_gradients = overlaps;
    training.step.distributed_optimizer = true;
    const Times divided = run(training, groups_of(1, 2, 1), fast_machine(1));
    EXPECT_NEAR(divided.link_bytes[0], parameters * (4 + 2) / 2, 16 * 9) << overlaps;
    training.step.distributed_optimizer = false;
    const Times copied = run(training, groups_of(1, 2, 1), fast_machine(1));
    EXPECT_NEAR(copied.link_bytes[0], parameters * 4, 16 * 9) << overlaps;
  }
}

TEST(TrainingSteps, send_activations_and_gradients_between_stages) {
  TrainingStep training = small_step(4, 1);
  const double activations = 2 * 32 * 64;
  const Times plain = run(training, groups_of(1, 1, 2), fast_machine(1));
  EXPECT_DOUBLE_EQ(plain.link_bytes[0], 4 * activations);  // out of the first stage
  EXPECT_DOUBLE_EQ(plain.link_bytes[1], 4 * activations);
  const Times divided = run(training, groups_of(2, 1, 2), fast_machine(2));  // each of two ranks sends a half
  EXPECT_DOUBLE_EQ(divided.link_bytes[0], 4 * activations);
  training.step.sequence_parallel = false;  // each of two ranks sends all
  const Times whole = run(training, groups_of(2, 1, 2), fast_machine(2));
  EXPECT_DOUBLE_EQ(whole.link_bytes[0], 2 * 4 * activations);
}

TEST(TrainingSteps, hide_gradients_behind_computation) {
  TrainingStep training = small_step(1, 1);
  Machine machine = fast_machine(1);
  machine.network.nic_bytes_per_second = 3e4;  // gradients take a third of the time of the computation
  const double overlapped = run(training, groups_of(1, 2, 1), machine).seconds;
  training.step.overlap_gradients = false;
  EXPECT_LT(overlapped, 0.9 * run(training, groups_of(1, 2, 1), machine).seconds);
}

TEST(TrainingSteps, exchange_the_tokens_of_experts) {
  TrainingStep training = small_step(1, 1);
  training.model.experts = 4;
  training.model.experts_per_token = 2;
  training.model.expert_ffn = 128;
  training.model.dense_layers = 3;
  training.step.distributed_optimizer = false;
  TrainingGroups groups = groups_of(1, 2, 1);
  groups.ep = 2;
  groups.expert = groups.data;
  const Times times = run(training, groups, fast_machine(1));
  const double exchanged = 5 * 4 * (2 * 32 * 64) * 2 / 2;  // layers, calls, bytes of a rank's tokens, experts, a half
  const double dense = 8 * (4 * 64 * 64 + 2 * 64) + 3 * (3 * 64 * 256) + 5 * (64 * 4) + 2 * 64;
  EXPECT_NEAR(times.link_bytes[0], exchanged + 4 * dense, 16 * 9);
}

TEST(TrainingSteps, are_refused_if_sizes_do_not_fit) {
  const auto error = [](TrainingStep training, const TrainingGroups& groups, Machine machine) {
    const Result<topology::Topology> topology = topology_of(machine, groups.tp * groups.dp * groups.pp);
    return std::string(training_schedule(training, groups, machine, *topology, 1 << 20).status().message());
  };
  Machine machine = fast_machine(1);
  EXPECT_EQ(error(small_step(1, 1), groups_of(1, 1, 3), machine), "8 layers do not divide into 3 stages");
  EXPECT_EQ(error(small_step(3, 2), groups_of(1, 1, 2), machine),
            "3 microbatches do not divide into 2 stages, as interleaving needs");
  EXPECT_EQ(error(small_step(3, 2), groups_of(1, 1, 1), machine),
            "virtual_stages above 1 need a pipeline, that is pp above 1");
  EXPECT_EQ(error(small_step(1, 1), groups_of(8, 1, 1), machine), "4 heads do not divide into 8 tensor-parallel ranks");
  machine.host.flops_per_second = 0;
  EXPECT_EQ(error(small_step(1, 1), groups_of(1, 1, 1), machine),
            "the machine has no host.flops_per_second, which training steps need");
}

TEST(TrainingSteps, are_read_from_a_file) {
  const std::string model = "[model]\nlayers = 2\nhidden = 8\nffn = 16\nheads = 4\nvocabulary = 9\n";
  const std::string step = "[step]\nsequence = 32\n";
  const Result<TrainingStep> read = training_step_from_toml(model + "kv_heads = 2\ngated = false\n" + step +
                                                            "microbatches = 3\nsequence_parallel = false\n");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->model.kv_heads, 2);
  EXPECT_FALSE(read->model.gated);
  EXPECT_EQ(read->step.microbatches, 3);
  EXPECT_FALSE(read->step.sequence_parallel);
  EXPECT_EQ(training_step_from_toml(model + step)->model.kv_heads, 4);
  const auto error = [](const std::string& text) {
    return std::string(training_step_from_toml(text).status().message());
  };
  EXPECT_EQ(error(model), "step: is missing");
  EXPECT_EQ(error(model + "layer = 2\n" + step),
            "model.layer (line 7): unknown key \"layer\"; did you mean \"layers\"?");
  EXPECT_EQ(error(model + "kv_heads = 3\n" + step),
            "model.heads: expected a divisor of hidden, and a multiple of kv_heads");
  EXPECT_EQ(error(model + "experts = 4\n" + step), "model.experts_per_token: is missing");
  EXPECT_EQ(error(model + "dense_layers = -1\n" + step), "model.dense_layers (line 7): expected a number from 0");
  EXPECT_EQ(error("[model]\nlayers = 2\nhidden = 8\nheads = 4\nvocabulary = 9\n" + step),
            "model.ffn: is missing, although there are layers without experts");
}

}  // namespace
}  // namespace accord::sim
