#pragma once
// The subcommands of `accord engine`, one file for each.

#include <CLI/CLI.hpp>

#include "accord/status.hpp"
#include "cli/commands.hpp"

namespace accord::cli {

void add_engine_inspect(CLI::App& engine, Action& chosen);
void add_engine_verify(CLI::App& engine, Action& chosen);
void add_engine_run(CLI::App& engine, Action& chosen);
void add_engine_report(CLI::App& engine, Action& chosen);
void add_engine_compare(CLI::App& engine, Action& chosen);
void add_engine_cache(CLI::App& engine, Action& chosen);
void add_engine_generate(CLI::App& engine, Action& chosen);

/// Prints why `accord engine COMMAND` failed and returns the exit code.
int engine_failure(const char* command, const Status& status);

}  // namespace accord::cli
