// `accord sim`: collects its subcommands.
#include "cli/sim/commands.hpp"

namespace accord::cli {

void add_sim(CLI::App& app, Action& chosen) {
  CLI::App* sim = app.add_subcommand("sim", "Run collectives in virtual time on a machine that a file describes");
  sim->require_subcommand(0, 1);
  add_sim_run(*sim, chosen);
  add_sim_replay(*sim, chosen);
  add_sim_train(*sim, chosen);
  add_sim_calibrate(*sim, chosen);
}

}  // namespace accord::cli
