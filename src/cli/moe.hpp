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

/// Prints why `accord moe COMMAND` failed and gives the exit code: kWrongUse for kInvalidArgument.
int moe_failure(const char* command, const Status& status);

/// The report in a file; errors name it.
Result<expert::Report> read_report(const std::string& path);

/// Reports of several ranks of one group.
struct JoinedReport {
  expert::Report all;  ///< what is the same on all ranks
  std::vector<std::vector<double>>
      waits;  ///< by rank, and by whom it waited for; empty where there is no report of a rank
};
/// kInvalidArgument: the files are not of one group at one moment, or two of one rank.
Result<JoinedReport> read_reports(const std::vector<std::string>& paths);

/// How much more than the mean the largest is: 1 is even.
double imbalance(const std::vector<double>& values);

/// An SVG document: the rows from rank to rank, the choices of each expert, and what each rank waited for each.
std::string moe_chart(const JoinedReport& report);

}  // namespace accord::cli
