// `accord sim replay`: what the ranks of a recorded or written program do, in virtual time.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "base/fd.hpp"
#include "base/rounding.hpp"
#include "base/text.hpp"
#include "cli/plan/commands.hpp"
#include "cli/sim/commands.hpp"
#include "cli/sim/report.hpp"
#include "sim/goal.hpp"

namespace accord::cli {
namespace {

constexpr std::size_t kLargestFile = std::size_t{8} << 30;

struct SimReplayOptions {
  std::string file;
  SimOutput output;
};

Status with_name(const std::string& file, const Status& status) {
  return {status.code(), fmt::format("{}: {}", file, status.message())};
}

Result<SimRecording> replay(const SimReplayOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const sim::Machine machine, sim::read_machine(options.output.machine));
  ACCORD_ASSIGN_OR_RETURN(std::string text, read_file(options.file, kLargestFile));
  const Result<sim::Goal> goal = sim::parse_goal(text);
  if (!goal.ok()) return with_name(options.file, goal.status());
  text = {};
  ACCORD_ASSIGN_OR_RETURN(const topology::Topology topology, sim::topology_of(machine, goal->ranks));
  Result<sim::Schedule> schedule = sim::schedule_of(*goal, machine, topology);
  if (!schedule.ok()) return with_name(options.file, schedule.status());
  SimRecording recording;
  if (const Status done = simulate(*std::move(schedule), machine, topology, options.output, recording); !done.ok())
    return with_name(options.file, Status(StatusCode::kInvalidArgument, done.message()));  // a cycle
  recording.title =
      fmt::format("{}: {} tasks of {} ranks on {}: {}", options.file, goal->tasks.size(), goal->ranks,
                  topology.host_count() == 1 ? "one host" : fmt::format("{} hosts", topology.host_count()),
                  time_text(recording.times.seconds));
  return recording;
}

int run(const SimReplayOptions& options) {
  const Result<SimRecording> recording = replay(options);
  if (!recording.ok()) return report_failure("sim replay", recording.status());
  if (const Status written = write_documents(options.output, *recording); !written.ok())
    return report_failure("sim replay", written);
  if (options.output.as_json) {
    nlohmann::ordered_json answer = {
        {"file", options.file}, {"ranks", recording->times.ranks.size()}, {"seconds", recording->times.seconds}};
    add_to_json(*recording, answer);
    fmt::print("{}\n", answer.dump(2));
  } else {
    print_times(*recording);
  }
  return kSuccess;
}

}  // namespace

void add_sim_replay(CLI::App& sim, Action& chosen) {
  CLI::App* command = sim.add_subcommand("replay", "Run what a file says that the ranks of a program do");
  const auto options = std::make_shared<SimReplayOptions>();
  command->add_option("file", options->file, "Computations and messages of all ranks, as GOAL text")->required();
  add_sim_output(*command, options->output);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace accord::cli
