#pragma once
// The subcommands of `accord sim`.

#include <CLI/CLI.hpp>

#include "cli/commands.hpp"

namespace accord::cli {

void add_sim_run(CLI::App& sim, Action& chosen);
void add_sim_replay(CLI::App& sim, Action& chosen);
void add_sim_train(CLI::App& sim, Action& chosen);
void add_sim_calibrate(CLI::App& sim, Action& chosen);

}  // namespace accord::cli
