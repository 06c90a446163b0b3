#pragma once
// Runs scenarios.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "simulation/scenario.hpp"

namespace accord::simulation {

struct Report {
  std::vector<std::string> violations;
  std::map<std::string, std::uint64_t> counts;  ///< how often each call ended how, and each fault met what
  std::uint64_t trace = 0;                      ///< equal in every run of the same scenario
  std::uint64_t steps = 0;
  Time virtual_time = 0;
};

Report run(const Scenario& scenario);

}  // namespace accord::simulation
