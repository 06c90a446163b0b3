#pragma once
// `accord bench serve`: the load generator for HTTP servers of language models, a Python program.

#include "cli/commands.hpp"

namespace accord::cli {

/// Adds the subcommand to `accord bench`.
void add_bench_serve(CLI::App& bench, Action& chosen);

}  // namespace accord::cli
