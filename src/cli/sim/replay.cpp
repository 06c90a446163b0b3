// `accord sim replay`: what the ranks of a recorded or written program do, in virtual time.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "base/config.hpp"
#include "base/fd.hpp"
#include "base/rounding.hpp"
#include "base/text.hpp"
#include "cli/plan/commands.hpp"
#include "cli/sim/commands.hpp"
#include "cli/sim/recorded_job.hpp"
#include "cli/sim/report.hpp"
#include "sim/goal.hpp"

namespace accord::cli {
namespace {

constexpr std::size_t kLargestFile = std::size_t{8} << 30;

struct SimReplayOptions {
  std::string path;
  SimOutput output;
};

struct Replayed {
  double recorded_seconds = 0;  // of a job; 0: GOAL text
  SimRecording recording;
};

std::string hosts_text(const topology::Topology& topology) {
  return topology.host_count() == 1 ? "one host" : fmt::format("{} hosts", topology.host_count());
}

Result<Replayed> replay_goal(const SimReplayOptions& options, const sim::Machine& machine) {
  ACCORD_ASSIGN_OR_RETURN(std::string text, read_file(options.path, kLargestFile));
  const Result<sim::Goal> goal = sim::parse_goal(text);
  if (!goal.ok()) return goal.status().with_context(options.path);
  text = {};
  ACCORD_ASSIGN_OR_RETURN(const topology::Topology topology, sim::topology_of(machine, goal->ranks));
  Result<sim::Schedule> schedule = sim::schedule_of(*goal, machine, topology);
  if (!schedule.ok()) return schedule.status().with_context(options.path);
  Replayed result;
  if (const Status done = simulate(*std::move(schedule), machine, topology, options.output, result.recording);
      !done.ok())  // a cycle
    return Status(StatusCode::kInvalidArgument, fmt::format("{}: {}", options.path, done.message()));
  result.recording.title = fmt::format("{}: {} tasks of {} ranks on {}: {}", options.path, goal->tasks.size(),
                                       goal->ranks, hosts_text(topology), time_text(result.recording.times.seconds));
  return result;
}

Result<Replayed> replay_job(const SimReplayOptions& options, const sim::Machine& machine) {
  ACCORD_ASSIGN_OR_RETURN(std::vector<FlightLog> logs, read_dumps({options.path}));
  const std::vector<GroupEvidence> groups = group_by_communicator(std::move(logs));
  if (groups.empty()) return Status(StatusCode::kNotFound, fmt::format("{} has no dumps", options.path));
  ACCORD_ASSIGN_OR_RETURN(const topology::Topology topology, sim::topology_of(machine, ranks_of_job(groups)));
  ACCORD_RETURN_IF_ERROR(config().status());
  Result<RecordedJob> job = rebuild_job(groups, machine, topology, config()->hints.slot_bytes);
  if (!job.ok()) return job.status().with_context(options.path);
  Replayed result{.recorded_seconds = job->seconds, .recording = {}};
  ACCORD_RETURN_IF_ERROR(simulate(std::move(job->schedule), machine, topology, options.output, result.recording));
  result.recording.title = fmt::format("{}: {} calls and messages of {} ranks on {}: {}, recorded {}", options.path,
                                       job->calls, topology.size(), hosts_text(topology),
                                       time_text(result.recording.times.seconds), time_text(job->seconds));
  if (job->left_out > 0)
    result.recording.title +=
        fmt::format(" ({} left out, as not all of their ranks have recorded them)", job->left_out);
  return result;
}

Result<Replayed> replay(const SimReplayOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const sim::Machine machine, sim::read_machine(options.output.machine));
  return std::filesystem::is_directory(options.path) ? replay_job(options, machine) : replay_goal(options, machine);
}

int run(const SimReplayOptions& options) {
  const Result<Replayed> result = replay(options);
  if (!result.ok()) return report_failure("sim replay", result.status());
  const sim::Times& times = result->recording.times;
  nlohmann::ordered_json facts = {{"path", options.path}, {"ranks", times.ranks.size()}, {"seconds", times.seconds}};
  if (result->recorded_seconds > 0) facts["recorded_seconds"] = result->recorded_seconds;
  return report_simulation("sim replay", options.output, result->recording, std::move(facts));
}

}  // namespace

void add_sim_replay(CLI::App& sim, Action& chosen) {
  CLI::App* command =
      sim.add_subcommand("replay", "Run a program that GOAL text describes, or that ranks have recorded");
  const auto options = std::make_shared<SimReplayOptions>();
  command
      ->add_option("path", options->path,
                   "Computations and messages of all ranks as GOAL text, or a directory of dumps of all ranks of a job")
      ->required();
  add_sim_output(*command, options->output);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace accord::cli
