#pragma once
// The built-in algorithms: pure functions from topology and request to a Plan, one file each in algorithms/.

#include <span>
#include <string_view>

#include "plan/builder.hpp"
#include "plan/plan.hpp"
#include "topology/topology.hpp"

namespace accord::plan {

using Algorithm = Result<Plan> (*)(const topology::Topology& topology, const Request& request);

/// One row of the registry.
struct AlgorithmEntry {
  Collective collective;
  std::string_view name;
  Algorithm make;
  std::string_view source;     ///< the paper or system it comes from
  Order order = Order::kNone;  ///< that its plans declare
};

/// All built-in algorithms, grouped by collective.
std::span<const AlgorithmEntry> algorithms();
/// kNotFound names the nearest one.
Result<const AlgorithmEntry*> algorithm_by_name(Collective collective, std::string_view name);

}  // namespace accord::plan
