#pragma once
// The subcommands of `accord`: each adds its options to the parser and gives what to run once they are parsed.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace accord::cli {

/// Exit codes of every subcommand.
inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;   ///< it could not be done; standard error says why
inline constexpr int kWrongUse = 2;  ///< the arguments have no meaning

/// What a parsed subcommand does; gives the exit code.
using Action = std::function<int()>;

/// Each adds its subcommand to `app`; `chosen` becomes its action if the user asks for it.
void add_info(CLI::App& app, Action& chosen);
/// `after_dashes`: the arguments from the first "--" on, which the parser does not see; it outlives the action.
void add_run(CLI::App& app, Action& chosen, const std::vector<std::string>& after_dashes);
void add_diagnose(CLI::App& app, Action& chosen);
void add_engine(CLI::App& app, Action& chosen);
void add_mesh(CLI::App& app, Action& chosen);
void add_moe(CLI::App& app, Action& chosen);
void add_plan(CLI::App& app, Action& chosen);
void add_bench(CLI::App& app, Action& chosen);
void add_tune(CLI::App& app, Action& chosen);

}  // namespace accord::cli
