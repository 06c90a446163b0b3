#include "cli/tune/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/fd.hpp"
#include "cli/bench/report.hpp"

namespace accord::cli {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const TuneOutput& output, const plan::TuningFacts& facts, const std::vector<TunedCollective>& all) {
  Json collectives = Json::object();
  for (const TunedCollective& tuned : all) {
    Json& points = collectives[std::string(tuned.operation->name)] = Json::array();
    for (const TunedPoint& point : tuned.points) {
      Json seconds = Json::object();
      for (const Timing& timing : point.timings) seconds[timing.candidate] = seconds_of(timing);
      points.push_back({{"bytes", point.bytes},
                        {"default", point.timings.front().algorithm},
                        {"chosen", winner_of(point).candidate},
                        {"seconds", std::move(seconds)}});
    }
  }
  return {{"table", output.table},
          {"processor", facts.processor},
          {"cores", facts.cores},
          {"ranks", facts.ranks},
          {"collectives", std::move(collectives)}};
}

BenchReport measurements_of(const plan::TuningFacts& facts, const std::vector<TunedCollective>& all) {
  BenchReport report{.ranks = facts.ranks, .cores = facts.cores, .processor = facts.processor, .rows = {}};
  for (const TunedCollective& tuned : all)
    for (const TunedPoint& point : tuned.points)
      for (const Timing& timing : point.timings) {
        const auto [least, most] = std::minmax_element(timing.rounds.begin(), timing.rounds.end());
        report.rows.push_back(
            {tuned.operation,
             point.bytes,
             timing.candidate,
             {.algorithm = timing.algorithm, .minimum = *least, .median = seconds_of(timing), .maximum = *most}});
      }
  return report;
}

}  // namespace

Status check_files(const TuneOutput& output) {
  ACCORD_RETURN_IF_ERROR(check_writable(output.table));
  return output.plot.empty() ? Status() : check_writable(output.plot);
}

void show_rules(const TuneOutput& output, const TunedCollective& tuned) {
  if (output.as_json) return;
  fmt::print("{}", rules_text(tuned));
  std::fflush(stdout);
}

Status write_results(const TuneOutput& output, const plan::TuningFacts& facts,
                     const std::vector<TunedCollective>& all) {
  std::string text = plan::tuning_head(facts);
  for (const TunedCollective& tuned : all) text += rules_text(tuned);
  text += plan::tuning_end();
  ACCORD_RETURN_IF_ERROR(plan::parse_tuning(text).status().with_context("the resulting table"));
  ACCORD_RETURN_IF_ERROR(write_file(output.table, text));
  if (!output.plot.empty()) {
    const BenchReport report = measurements_of(facts, all);
    const std::string title = fmt::format("accord tune: {}, medians of the rounds", setting_text(report));
    ACCORD_RETURN_IF_ERROR(write_file(output.plot, to_svg(report, title)));
  }
  if (output.as_json) {
    fmt::print("{}\n", to_json(output, facts, all).dump(2));
    return {};
  }
  fmt::print("written to {0}; ACCORD_SELECT=@{0} uses it\n", output.table);
  return {};
}

}  // namespace accord::cli
