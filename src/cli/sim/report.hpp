#pragma once
// Options and output that the subcommands which simulate have in common.

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

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

/// Writes the documents that are wanted, and prints the result: as JSON, `facts` and then the times, or as text, the
/// ranks that work and wait longest and the busiest links; in both, the path if there is a journal. Returns the exit
/// code. `command`: "sim run", for messages.
int report_simulation(std::string_view command, const SimOutput& output, const SimRecording& recording,
                      nlohmann::ordered_json facts);

}  // namespace accord::cli
