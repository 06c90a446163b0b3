// `accord sim train`: a step of training over a mesh of ranks, in virtual time.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "accord/mesh.hpp"
#include "base/fd.hpp"
#include "base/text.hpp"
#include "cli/mesh_grid_text.hpp"
#include "cli/number_checks.hpp"
#include "cli/plan/commands.hpp"
#include "cli/sim/commands.hpp"
#include "cli/sim/report.hpp"
#include "sim/training.hpp"

namespace accord::cli {
namespace {

struct SimTrainOptions {
  std::string sizes;
  int world = 0;
  std::string model;  // file
  std::string slot_bytes = "64M";
  SimOutput output;
};

struct SimulatedStep {
  MeshConfig config;
  sim::TrainingAmount amount;
  double part_of_flops = 0;  // of those that the ranks could compute in the time of the step
  SimRecording recording;

  double seconds() const { return recording.times.seconds; }
};

Result<std::vector<sim::Members>> groups_of(const MeshPlan& plan, std::string_view family) {
  ACCORD_ASSIGN_OR_RETURN(const int number, plan.family(family));
  std::vector<sim::Members> groups;
  for (std::vector<Rank>& ranks : plan.all_groups(number))
    groups.push_back(std::make_shared<const std::vector<Rank>>(std::move(ranks)));
  return groups;
}

int size_of_groups(const std::vector<sim::Members>& groups) { return static_cast<int>(groups.front()->size()); }

Result<sim::TrainingGroups> training_groups(const MeshPlan& plan, const sim::TrainingStep& training) {
  sim::TrainingGroups groups;
  ACCORD_ASSIGN_OR_RETURN(groups.tensor, groups_of(plan, "tp"));
  ACCORD_ASSIGN_OR_RETURN(groups.context, groups_of(plan, "cp"));
  ACCORD_ASSIGN_OR_RETURN(groups.pipeline, groups_of(plan, "pp"));
  ACCORD_ASSIGN_OR_RETURN(groups.data, groups_of(plan, "dp_cp"));
  groups.tp = size_of_groups(groups.tensor);
  groups.cp = size_of_groups(groups.context);
  groups.pp = size_of_groups(groups.pipeline);
  groups.dp = size_of_groups(groups.data);
  groups.data_ranks = groups.dp / groups.cp;
  if (training.model.experts == 0) return groups;
  ACCORD_ASSIGN_OR_RETURN(groups.expert, groups_of(plan, "ep"));
  ACCORD_ASSIGN_OR_RETURN(groups.expert_data, groups_of(plan, "ep_dp"));
  groups.ep = size_of_groups(groups.expert);
  groups.expert_dp = size_of_groups(groups.expert_data);
  return groups;
}

Status check(const MeshConfig& config, const sim::TrainingStep& training) {
  if (config.rank_offset != 0) return {StatusCode::kInvalidArgument, "a simulated mesh begins at rank 0"};
  if (config.gtp > 1 || config.egtp > 1)
    return {StatusCode::kUnsupported, "gtp and egtp are not simulated; leave them out"};
  if (training.model.experts == 0) return {};
  if ((config.etp == 0 ? config.tp : config.etp) > 1)
    return {StatusCode::kUnsupported, "experts that are divided by tensor parallelism are not simulated; set etp=1"};
  return {};
}

Result<SimulatedStep> simulate_step(const SimTrainOptions& options) {
  SimulatedStep result;
  ACCORD_ASSIGN_OR_RETURN(const sim::Machine machine, sim::read_machine(options.output.machine));
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(options.model));
  const Result<sim::TrainingStep> training = sim::training_step_from_toml(text);
  if (!training.ok()) return training.status().with_context(options.model);
  ACCORD_ASSIGN_OR_RETURN(result.config, parse_mesh_config(options.sizes, {.world_size = options.world}));
  ACCORD_RETURN_IF_ERROR(check(result.config, *training));
  ACCORD_ASSIGN_OR_RETURN(const MeshPlan plan, MeshPlan::create(result.config));
  ACCORD_ASSIGN_OR_RETURN(const sim::TrainingGroups groups, training_groups(plan, *training));
  ACCORD_ASSIGN_OR_RETURN(const topology::Topology topology, sim::topology_of(machine, plan.world_size()));
  ACCORD_ASSIGN_OR_RETURN(const std::size_t slot_bytes, parse_bytes(options.slot_bytes));
  ACCORD_ASSIGN_OR_RETURN(sim::Schedule schedule,
                          sim::training_schedule(*training, groups, machine, topology, slot_bytes));
  ACCORD_RETURN_IF_ERROR(simulate(std::move(schedule), machine, topology, options.output, result.recording));
  result.amount = sim::amount_of(*training, groups);
  result.part_of_flops = result.amount.flops / (machine.host.flops_per_second * plan.world_size() * result.seconds());
  result.recording.title =
      fmt::format("a step of {} ranks ({}): {}, {:.4g} tokens/s, {:.1f} % of the ranks' operations", plan.world_size(),
                  plan.world_size() == 1 ? "no parallelism" : mesh_grid_text(plan.axes()), time_text(result.seconds()),
                  result.amount.tokens / result.seconds(), 100 * result.part_of_flops);
  return result;
}

int run(const SimTrainOptions& options) {
  const Result<SimulatedStep> result = simulate_step(options);
  if (!result.ok()) return report_failure("sim train", result.status());
  return report_simulation("sim train", options.output, result->recording,
                           {{"sizes", options.sizes},
                            {"ranks", result->recording.times.ranks.size()},
                            {"seconds", result->seconds()},
                            {"tokens_per_second", result->amount.tokens / result->seconds()},
                            {"flops", result->amount.flops},
                            {"part_of_flops", result->part_of_flops}});
}

}  // namespace

void add_sim_train(CLI::App& sim, Action& chosen) {
  CLI::App* command = sim.add_subcommand("train", "Run a step of training over a mesh of ranks");
  const auto options = std::make_shared<SimTrainOptions>();
  command->add_option("SIZES", options->sizes, "\"tp=8,pp=4,cp=2,ep=8,etp=1\", as for accord mesh show")->required();
  command->add_option("--world", options->world, "Ranks of the job; may be omitted if SIZES has dp=")
      ->check(positive_number());
  command->add_option("--model", options->model, "File that describes the model and the step (docs/simulation.md)")
      ->required()
      ->type_name("FILE");
  command
      ->add_option(
          "--slot-bytes", options->slot_bytes,
          "Scratch of a rank for one round of a call: smaller rounds overlap more, and take longer to simulate")
      ->capture_default_str();
  add_sim_output(*command, options->output);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace accord::cli
