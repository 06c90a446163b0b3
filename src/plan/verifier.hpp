#pragma once
// Proves that a plan is correct, or names the step that is wrong.

#include "accord/status.hpp"
#include "plan/plan.hpp"

namespace accord::plan {

/// Whether the caller's input and output may be the same memory.
enum class Aliasing : std::uint8_t { kOutOfPlace, kInPlace };

/// Runs all programs symbolically, over several rounds, and checks that
/// - every output chunk ends with exactly the contributions that the collective requires, each once, in the plan's
///   order, and no sum is rounded before its end (Space::kPartials);
/// - every wait is satisfied and no rank is left waiting (deadlock);
/// - any two accesses to one chunk, one of them a write, are ordered by signals, packets, lane barriers or program
///   order (happens-before, by vector clocks), also between round k and k + kRoundDepth, which share scratch;
/// - chunks, peers, ids and lanes are within bounds, inputs are never written unless in place, packets are read once;
/// - peers touch buffers in windows only while the owning rank is in the round;
/// - each signal is sent once a round and waited for at least once.
///
/// REQUIRES: the programs of all ranks. Fails with kInvalidArgument; the message names plan, rank, lane and step.
Status verify(const Plan& plan, Aliasing aliasing);

/// Verifies both ways, since callers may use a plan in place or out of place; a plan declared for separate buffers is
/// only verified out of place. The error says so if a plan is correct only with separate buffers but does not declare
/// that.
Status verify_for_calls(const Plan& plan);

/// Checks a verified plan for devices, on which packets order nothing but themselves: two accesses to other memory must
/// be ordered without them. The executor must start round k only when all ranks have completed round k - kRoundDepth,
/// even if the plan paces itself and mixes_packets(). REQUIRES: the programs of all ranks, if the plan has packets, and
/// several lanes or mixes_packets(). Fails with kInvalidArgument, like verify().
Status verify_without_packets(const Plan& plan);

/// Whether a plan has packets, and other memory that several ranks access.
bool mixes_packets(const Plan& plan);

}  // namespace accord::plan
