#pragma once
// Many runs, and the smallest scenario that still fails.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "simulation/run.hpp"
#include "simulation/scenario.hpp"

namespace accord::simulation {

struct Failure {
  std::uint64_t number = 0;  ///< of the run; its seed in run_seeds()
  std::string violation;     ///< the first one
};

struct Results {
  std::uint64_t runs = 0;
  std::uint64_t steps = 0;
  std::vector<Failure> failures;
  std::map<std::string, std::uint64_t> counts;
};

/// Runs the scenarios with the numbers `first`, ..., `end` - 1 in processes of their own, so that a run that crashes is
/// a failure like any other. Stops soon after `most_failures`.
Results run_many(std::uint64_t first, std::uint64_t end, std::uint64_t most_failures,
                 const std::function<Scenario(std::uint64_t)>& scenario_of_number);

/// Runs the scenarios of the seeds `first`, ..., `first` + `runs` - 1.
Results run_seeds(std::uint64_t first, std::uint64_t runs, const Limits& limits, std::uint64_t most_failures = 10);

/// Returns a scenario with as few faults, steps and ranks as possible that fails as well. Its seed may differ, because
/// any change also changes what happens when. REQUIRES: `failing` fails.
Scenario minimize(const Scenario& failing);

}  // namespace accord::simulation
