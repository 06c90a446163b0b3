// `accord engine`: only collects its subcommands.
#include "cli/engine/commands.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace accord::cli {

void add_engine(CLI::App& app, Action& chosen) {
  CLI::App* engine = app.add_subcommand("engine", "Inspect, check and run engine packages");
  engine->require_subcommand(0, 1);
  add_engine_inspect(*engine, chosen);
  add_engine_verify(*engine, chosen);
  add_engine_run(*engine, chosen);
  add_engine_report(*engine, chosen);
  add_engine_compare(*engine, chosen);
  add_engine_cache(*engine, chosen);
  add_engine_generate(*engine, chosen);
}

int engine_failure(const char* command, const Status& status) {
  fmt::print(stderr, "accord engine {}: {}\n", command, status.to_string());
  return kFailure;
}

}  // namespace accord::cli
