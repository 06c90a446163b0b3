#pragma once
// The subcommands of `accord moe`, one file for each, and what they share.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "accord/status.hpp"
#include "cli/commands.hpp"
#include "expert/report.hpp"

namespace accord::cli {

void add_moe_report(CLI::App& moe, Action& chosen);
void add_moe_balance(CLI::App& moe, Action& chosen);

/// Prints why `accord moe COMMAND` failed and returns the exit code: kUsageError for kInvalidArgument.
int moe_failure(const char* command, const Status& status);

/// Reads the report in a file; errors name the file.
Result<expert::Report> read_report(const std::string& path);

/// Reports of several ranks of one group.
struct JoinedReport {
  expert::Report all;                      ///< the part that is equal on all ranks
  std::vector<std::vector<double>> waits;  ///< [rank][rank waited for]; empty for a rank without a report
};
/// Fails with kInvalidArgument if the files are not of one group at one moment, or if two are of one rank.
Result<JoinedReport> read_reports(const std::vector<std::string>& paths);

/// Ratio of the largest value to the mean: 1 is even.
double imbalance(const std::vector<double>& values);

/// Returns an SVG document: the rows from rank to rank, the choices of each expert, and how long each rank waited for
/// each.
std::string moe_chart(const JoinedReport& report);

}  // namespace accord::cli
