// `accord moe balance`: computes a placement from the loads of a report, and what it would have improved.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/moe/commands.hpp"
#include "expert/placement.hpp"

namespace accord::cli {
namespace {

using Json = nlohmann::ordered_json;

struct MoeBalanceOptions {
  std::string report;
  int ranks = 0;
  int per_rank = 0;
};

/// The work of each rank if replicas share evenly.
Result<std::vector<double>> work_of(const ExpertPlacement& lists, const expert::Report& report) {
  ACCORD_ASSIGN_OR_RETURN(const expert::Placement placement,
                          expert::make_placement(lists, report.experts, static_cast<int>(lists.size())));
  std::vector<double> work(lists.size(), 0.0);
  for (int place = 0; place < placement.places(); ++place) {
    const auto e = static_cast<std::size_t>(placement.expert[static_cast<std::size_t>(place)]);
    const int replicas = placement.first_replica[e + 1] - placement.first_replica[e];
    work[static_cast<std::size_t>(placement.holder[static_cast<std::size_t>(place)])] +=
        static_cast<double>(report.loads[e]) / replicas;
  }
  return work;
}

Status balance(const MoeBalanceOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const expert::Report report, read_report(options.report));
  const int ranks = options.ranks > 0 ? options.ranks : report.size;
  const int per_rank = options.per_rank > 0 ? options.per_rank : (report.experts + ranks - 1) / ranks;
  const std::vector<double> loads(report.loads.begin(), report.loads.end());
  ACCORD_ASSIGN_OR_RETURN(const ExpertPlacement placement, balance_experts(loads, ranks, per_rank));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<double> before, work_of(report.placement, report));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<double> after, work_of(placement, report));
  fmt::print(stderr,
             "the busiest of {} ranks had {:.2f} times the mean; with {} ranks it would have {:.2f} times the mean\n",
             before.size(), imbalance(before), ranks, imbalance(after));
  fmt::print("{}\n", Json(placement).dump());
  return {};
}

}  // namespace

void add_moe_balance(CLI::App& moe, Action& chosen) {
  const auto options = std::make_shared<MoeBalanceOptions>();
  CLI::App* command = moe.add_subcommand(
      "balance",
      "Print a placement of experts, as JSON, that evens out the loads of a report: a list of ids for each rank");
  command->add_option("REPORT", options->report, "report of any rank of the group: the JSON of ExpertGroup.report()")
      ->required();
  command->add_option("--ranks", options->ranks, "ranks that hold the experts [as in the report]")
      ->check(CLI::PositiveNumber);
  command->add_option("--per-rank", options->per_rank, "experts on each rank, including replicas [as few as possible]")
      ->check(CLI::PositiveNumber);
  command->callback([options, &chosen] {
    chosen = [options] {
      const Status status = balance(*options);
      return status.ok() ? kSuccess : moe_failure("balance", status);
    };
  });
}

}  // namespace accord::cli
