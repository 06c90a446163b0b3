#pragma once
// The subcommands of `accord`. Each adds its options to the parser, and provides the action to run after parsing.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"

namespace accord::cli {

/// Exit codes of every subcommand.
inline constexpr int kSuccess = 0;
inline constexpr int kFailure = 1;     ///< the command failed; standard error says why
inline constexpr int kUsageError = 2;  ///< the arguments are invalid

/// Prints why `accord COMMAND` failed and returns the exit code: kUsageError for kInvalidArgument.
int report_failure(std::string_view command, const Status& status);

/// The action of a parsed subcommand; returns the exit code.
using Action = std::function<int()>;

/// Each function adds its subcommand to `app`. If the user asks for that subcommand, `chosen` becomes its action.
void add_info(CLI::App& app, Action& chosen);
/// `after_dashes`: the arguments from the first "--" on, which the parser does not see. It must outlive the action.
void add_run(CLI::App& app, Action& chosen, const std::vector<std::string>& after_dashes);
void add_diagnose(CLI::App& app, Action& chosen);
void add_engine(CLI::App& app, Action& chosen);
void add_mesh(CLI::App& app, Action& chosen);
void add_moe(CLI::App& app, Action& chosen);
void add_plan(CLI::App& app, Action& chosen);
void add_sim(CLI::App& app, Action& chosen);
void add_bench(CLI::App& app, Action& chosen);
void add_serve(CLI::App& app, Action& chosen);
void add_tune(CLI::App& app, Action& chosen);

}  // namespace accord::cli
