// `accord moe`: collects its subcommands, and reads the reports that they are about.
#include "cli/moe/commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "base/fd.hpp"

namespace accord::cli {

void add_moe(CLI::App& app, Action& chosen) {
  CLI::App* moe = app.add_subcommand("moe", "Inspect the load of a job's experts, and place the experts accordingly");
  moe->require_subcommand(0, 1);
  add_moe_report(*moe, chosen);
  add_moe_balance(*moe, chosen);
}

int moe_failure(const char* command, const Status& status) {
  fmt::print(stderr, "accord moe {}: {}\n", command, status.to_string());
  return status.code() == StatusCode::kInvalidArgument ? kUsageError : kFailure;
}

Result<expert::Report> read_report(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  Result<expert::Report> report = expert::report_from_json(text);
  if (!report.ok()) return report.status().with_context(path);
  return report;
}

Result<JoinedReport> read_reports(const std::vector<std::string>& paths) {
  JoinedReport joined;
  for (const std::string& path : paths) {
    ACCORD_ASSIGN_OR_RETURN(expert::Report report, read_report(path));
    if (joined.waits.empty()) {
      joined.waits.resize(static_cast<std::size_t>(report.size));
      joined.all = report;
    }
    const expert::Report& first = joined.all;
    if (report.group != first.group || report.size != first.size || report.prepares != first.prepares ||
        report.traffic != first.traffic || report.loads != first.loads)
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("{} is of group \"{}\" after {} maps, but {} is of group \"{}\" after {}: give reports of one "
                      "group's ranks that were written at the same time",
                      path, report.group, report.prepares, paths.front(), first.group, first.prepares));
    std::vector<double>& waits = joined.waits[static_cast<std::size_t>(report.rank)];
    if (!waits.empty())
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{} is of rank {}, but another file is of the same rank", path, report.rank));
    waits = report.statistics.wait_seconds;
  }
  return joined;
}

double imbalance(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  if (sum == 0) return 1;
  return *std::max_element(values.begin(), values.end()) * static_cast<double>(values.size()) / sum;
}

}  // namespace accord::cli
