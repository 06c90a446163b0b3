// accord_protocol_simulation: runs the communicator's protocol with faults in virtual time (docs/simulation.md).
#include <fmt/format.h>
#include <sys/personality.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

#include "base/fd.hpp"
#include "simulation/campaign.hpp"
#include "simulation/planted_bug.hpp"
#include "simulation/run.hpp"

using namespace accord;
using namespace accord::simulation;

namespace {

/// Maps everything at the same addresses in every process, so that nothing in a run depends on them.
void fix_addresses(char** arguments) {
  const int now = ::personality(0xffffffff);
  if (now == -1 || (now & ADDR_NO_RANDOMIZE) != 0 ||
      ::personality(static_cast<unsigned long>(now) | ADDR_NO_RANDOMIZE) == -1)
    return;
  ::execv("/proc/self/exe", arguments);
}

int show(const Scenario& scenario) {
  const Report report = run(scenario);
  fmt::print("{}\n", to_json(scenario));
  fmt::print("{} steps, {:.3f} ms, trace {:016x}\n", report.steps,
             static_cast<double>(report.virtual_time) / kMillisecond, report.trace);
  for (const auto& [what, count] : report.counts) fmt::print("{:8} {}\n", count, what);
  for (const std::string& violation : report.violations) fmt::print("violation: {}\n", violation);
  return report.violations.empty() ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  fix_addresses(arguments);
  CLI::App app("Runs the communicator's protocol with faults in virtual time, from seeds.");
  std::uint64_t runs = 1000, first = 1;
  Limits limits;
  std::optional<std::uint64_t> seed;
  std::string file;
  bool minimizes = false;
  app.add_option("--runs", runs, "seeds to run");
  app.add_option("--first", first, "the first of them");
  app.add_option("--min-ranks", limits.min_ranks, "ranks of a run, at least");
  app.add_option("--max-ranks", limits.max_ranks, "ranks of a run, at most");
  app.add_option("--seed", seed, "run this seed alone, and show it");
  app.add_option("--scenario", file, "run the scenario in this file, and show it");
  app.add_option("--planted", accord_planted_bug,
                 "1: a lost notice, 2: a buffer freed early, 3: disagreement at shrink")
      ->check(CLI::Range(0, 3));
  app.add_flag("--minimize", minimizes, "reduce the first scenario that fails to few steps and faults");
  CLI11_PARSE(app, count, arguments);
  const auto show_smallest = [&](const Scenario& scenario) { return show(minimizes ? minimize(scenario) : scenario); };
  if (seed) return show_smallest(scenario_of(*seed, limits));
  if (!file.empty()) {
    const Result<std::string> text = read_file(file);
    const Result<Scenario> scenario = text.ok() ? scenario_from_json(*text) : text.status();
    if (scenario.ok()) return show_smallest(*scenario);
    fmt::print(stderr, "{}\n", scenario.status().to_string());
    return 2;
  }
  const auto begin = std::chrono::steady_clock::now();
  const Results results = run_seeds(first, runs, limits);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  fmt::print("{} runs, {} steps, {:.1f} s, {:.0f} runs a second\n", results.runs, results.steps, took.count(),
             static_cast<double>(results.runs) / took.count());
  for (const auto& [what, how_often] : results.counts) fmt::print("{:10} {}\n", how_often, what);
  for (const Failure& failure : results.failures) fmt::print("seed {}: {}\n", failure.number, failure.violation);
  if (results.failures.empty()) return 0;
  if (minimizes) (void)show_smallest(scenario_of(results.failures.front().number, limits));
  return 1;
}
