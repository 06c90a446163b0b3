#pragma once
// Options and output that the subcommands which simulate have in common.

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/sim/recording.hpp"

namespace accord::cli {

struct SimOutput {
  std::string machine;  // file
  std::string links = "fair";
  bool shows_path = false;
  std::string trace, timeline;  // files
  bool as_json = false;

  bool records() const { return shows_path || !trace.empty() || !timeline.empty(); }
  sim::Sharing sharing() const { return links == "fair" ? sim::Sharing::kFair : sim::Sharing::kQueues; }
};

void add_sim_output(CLI::App& command, SimOutput& output);

/// Simulates, as `output` says, and fills in all but the title.
Status simulate(sim::Schedule schedule, const sim::Machine& machine, const topology::Topology& topology,
                const SimOutput& output, SimRecording& recording);
Status simulate(sim::Programs programs, std::string label, const sim::Machine& machine,
                const topology::Topology& topology, const SimOutput& output, SimRecording& recording);

/// The times, and the path if there is a journal: "simulated_ranks", "operations", "by_rank", "links", "critical_path".
void add_to_json(const SimRecording& recording, nlohmann::ordered_json& answer);
/// The ranks that work and wait longest, the busiest links, and the path if there is a journal.
void print_times(const SimRecording& recording);
/// Writes the trace and the timeline, if they are wanted.
Status write_documents(const SimOutput& output, const SimRecording& recording);

}  // namespace accord::cli
