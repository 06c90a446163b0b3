// `accord sim run`: one collective in virtual time: how long it takes, which ranks wait, and which links are busy.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "base/fd.hpp"
#include "base/text.hpp"
#include "cli/plan/commands.hpp"
#include "cli/sim/commands.hpp"
#include "cli/sim/report.hpp"
#include "plan/selector.hpp"
#include "plan/step_rules.hpp"
#include "sim/goal.hpp"
#include "sim/simulate.hpp"

namespace accord::cli {
namespace {

constexpr int kMostRanks = plan::kMaxSize;

struct SimRunOptions {
  std::string collective;
  PlanCallText call;
  int ranks = 2;
  Rank root = 0;
  std::string algorithm;
  std::string select;
  int calls = 1;
  bool folds = true;
  std::string goal;  // file
  SimOutput output;
};

struct SimulatedCall {
  Collective collective = Collective::kBarrier;
  std::string algorithm;
  std::size_t slot_bytes = 0;  // of the table's row; 0: the default
  int ranks = 1;
  int calls = 1;
  PlanCall call;
  sim::Machine machine;
  int hosts = 1;
  SimRecording recording;

  double seconds_of_call() const { return recording.times.seconds / calls; }
};

std::string headline_of(const SimulatedCall& result) {
  const std::string hosts =
      result.hosts == 1 ? "one host"
                        : fmt::format("{} hosts ({})", result.hosts, sim::to_string(result.machine.network.shape));
  std::string text =
      fmt::format("{} of {} by {}, {} ranks on {}: {}", to_string(result.collective), bytes_text(result.call.bytes),
                  result.algorithm, result.ranks, hosts, time_text(result.seconds_of_call()));
  if (result.call.bytes > 0)
    text += fmt::format(", {:.3g} GB/s", static_cast<double>(result.call.bytes) / result.seconds_of_call() / 1e9);
  if (result.calls > 1) text += fmt::format(" (mean of {} calls)", result.calls);
  return text;
}

Result<plan::Choice> choose(const SimRunOptions& options, Collective collective, const PlanCall& call,
                            const topology::Topology& topology) {
  if (!options.algorithm.empty()) {
    const auto entry = plan::algorithm_by_name(collective, options.algorithm);
    if (!entry.ok()) return Status(StatusCode::kInvalidArgument, entry.status().message());
    return plan::Choice{*entry, 0};
  }
  ACCORD_ASSIGN_OR_RETURN(const plan::Selector selector, plan::Selector::create(options.select));
  return selector.choose({.collective = collective,
                          .bytes = call.bytes,
                          .root = options.root,
                          .op = call.op,
                          .readable = topology.readable()},
                         topology);
}

Result<SimulatedCall> simulate_call(const SimRunOptions& options) {
  SimulatedCall result;
  result.ranks = options.ranks;
  result.calls = options.calls;
  ACCORD_ASSIGN_OR_RETURN(result.collective, collective_from_string(options.collective));
  ACCORD_ASSIGN_OR_RETURN(result.call, read_plan_call(options.call, result.collective));
  ACCORD_ASSIGN_OR_RETURN(result.machine, sim::read_machine(options.output.machine));
  ACCORD_ASSIGN_OR_RETURN(const topology::Topology topology, sim::topology_of(result.machine, options.ranks));
  result.hosts = topology.host_count();
  ACCORD_ASSIGN_OR_RETURN(const plan::Choice choice, choose(options, result.collective, result.call, topology));
  if (result.hosts > 1 && !choice.algorithm->spans_hosts)
    return Status(StatusCode::kInvalidArgument, fmt::format("{} runs inside one host only", choice.algorithm->name));
  result.algorithm = choice.algorithm->name;
  result.slot_bytes = choice.slot_bytes;
  ACCORD_RETURN_IF_ERROR(config().status());
  const sim::Call call{.request = {.collective = result.collective,
                                   .dtype = result.call.dtype,
                                   .op = result.call.op,
                                   .root = options.root,
                                   .count = result.call.bytes / size_of(result.call.dtype)},
                       .slot_bytes = choice.slot_bytes != 0 ? choice.slot_bytes : config()->hints.slot_bytes,
                       .times = static_cast<std::uint64_t>(options.calls)};
  ACCORD_ASSIGN_OR_RETURN(sim::Programs programs, sim::programs_of(*choice.algorithm, call, result.machine, topology,
                                                                   options.folds && options.goal.empty()));
  if (!options.goal.empty()) {
    ACCORD_ASSIGN_OR_RETURN(const sim::Goal goal, sim::goal_of(programs));
    ACCORD_RETURN_IF_ERROR(write_file(options.goal, sim::goal_text(goal)));
  }
  SimRecording& recording = result.recording;
  ACCORD_RETURN_IF_ERROR(
      simulate(std::move(programs), options.collective, result.machine, topology, options.output, recording));
  recording.title = headline_of(result);
  return result;
}

int run(const SimRunOptions& options) {
  const Result<SimulatedCall> result = simulate_call(options);
  if (!result.ok()) return report_failure("sim run", result.status());
  return report_simulation("sim run", options.output, result->recording,
                           {{"collective", to_string(result->collective)},
                            {"algorithm", result->algorithm},
                            {"slot_bytes", result->slot_bytes},
                            {"bytes", result->call.bytes},
                            {"dtype", to_string(result->call.dtype)},
                            {"ranks", result->ranks},
                            {"hosts", result->hosts},
                            {"calls", result->calls},
                            {"seconds", result->seconds_of_call()}});
}

}  // namespace

void add_sim_run(CLI::App& sim, Action& chosen) {
  CLI::App* command = sim.add_subcommand("run", "Run one collective, and show its time, waiting ranks and busy links");
  const auto options = std::make_shared<SimRunOptions>();
  command->add_option("collective", options->collective, "The collective, such as all_reduce")->required();
  command->add_option("bytes", options->call.bytes, "Size of the buffer, or of one rank's part of it, such as 64k")
      ->capture_default_str();
  command->add_option("-n,--ranks", options->ranks, "Ranks, which fill the hosts one after the other")
      ->check(CLI::Range(1, kMostRanks))
      ->capture_default_str();
  command->add_option("--algorithm", options->algorithm, "The algorithm [the one that the table selects]");
  command->add_option("--select", options->select, "Rows of a selection table, after the default ones")
      ->excludes("--algorithm");
  command->add_flag("!--no-fold", options->folds, "Simulate all ranks, also those that do the same as others");
  command->add_option("--root", options->root, "The root, for a collective that has one")->capture_default_str();
  add_plan_call(*command, options->call);
  command->add_option("--calls", options->calls, "Calls made one after the other; the time is their mean")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command
      ->add_option("--goal", options->goal, "Write what all ranks do to FILE, as GOAL text, which LogGOPSim reads too")
      ->type_name("FILE");
  add_sim_output(*command, options->output);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace accord::cli
