#pragma once
// Proves a plan right, or says which step is wrong.

#include "accord/status.hpp"
#include "plan/plan.hpp"

namespace accord::plan {

/// May the caller's input and output be the same memory?
enum class Aliasing : std::uint8_t { kOutOfPlace, kInPlace };

/// Runs all programs symbolically, over several rounds, and checks that
///  - every output chunk ends with exactly the contributions that the collective asks for, each once, in the plan's order, and
///    that no sum is rounded before its end (Space::kPartials);
///  - every wait is met and no rank is left waiting (deadlock);
///  - any two accesses to one chunk, one of them a write, are ordered by signals, packets, lane barriers or program order
///    (happens-before, by vector clocks), also between round k and k + kRoundDepth, which share scratch;
///  - chunks, peers, ids and lanes are within bounds, inputs are never written unless in place, packets are read once;
///  - each signal is sent once a round and waited for at least once.
/// REQUIRES: the programs of all ranks. kInvalidArgument; the message names plan, rank, lane and step.
Status verify(const Plan& plan, Aliasing aliasing);

/// Both ways, as callers may use a plan for either; a plan that is right only with the buffers apart says so.
Status verify_for_calls(const Plan& plan);

}  // namespace accord::plan
