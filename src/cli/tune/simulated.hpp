#pragma once
// Tuning for a machine that a file describes, by simulation.

#include <functional>
#include <string>
#include <vector>

#include "accord/call.hpp"
#include "accord/status.hpp"
#include "cli/tune/winners.hpp"
#include "sim/machine.hpp"

namespace accord::cli {

/// Simulates every algorithm of the collective that these ranks can run, with the communicator's slots and with smaller
/// ones, and the default selection first. Candidates that fall far behind as sizes grow are left out beyond.
/// `announce`: called before each size. Cost: seconds for many ranks. REQUIRES: sizes that grow.
Result<std::vector<TunedPoint>> simulated_points(Collective collective, const std::vector<std::size_t>& sizes,
                                                 const sim::Machine& machine, const topology::Topology& topology,
                                                 const std::function<void(std::size_t bytes)>& announce);

}  // namespace accord::cli
