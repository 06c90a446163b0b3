#pragma once
// The seconds of a call of very many rounds, from its first ones.

#include "accord/status.hpp"
#include "sim/messages.hpp"
#include "sim/program.hpp"

namespace accord::sim {

/// Returns the seconds that simulate() returns for the call. Of a call with many rounds it simulates as many as it
/// takes until rounds have lasted equally long for a while, and takes the others to last as long. Cost: that of a few
/// hundred rounds, for most calls.
Result<double> estimate_seconds(const Programs& programs, const Machine& machine, const topology::Topology& topology,
                                Sharing sharing = Sharing::kFair);

}  // namespace accord::sim
