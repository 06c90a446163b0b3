#pragma once
// Runs a plan in virtual time.

#include <cstdint>
#include <vector>

#include "accord/status.hpp"
#include "sim/network.hpp"
#include "sim/program.hpp"

namespace accord::sim {

/// Times of a rank, in seconds since the first rank began.
struct RankTimes {
  double end = 0;
  double working = 0;  ///< the processor was used
  double waiting = 0;  ///< for events and for other ranks' rounds
};

struct PlanTimes {
  double seconds = 0;  ///< until the last rank has ended
  std::vector<RankTimes> ranks;
  std::vector<double> link_bytes;  ///< carried, by link of the network
  std::vector<Link> links;         ///< of the network, if run_plan() made it
  std::uint64_t operations = 0;    ///< that were simulated, of all ranks in all rounds
};

/// Runs the programs of all ranks, which all begin at time 0. `events`: the number of events. `network`: null for one
/// host. Fails with kInternal, which names a rank, if ranks wait forever; no verified plan does.
Result<PlanTimes> run_programs(const std::vector<Program>& programs, std::uint32_t events, const Machine& machine,
                               const topology::Topology& topology, const Network* network);

/// Makes the programs of all ranks and runs them.
Result<PlanTimes> run_plan(const plan::Plan& plan, const exec::RequestRecord& request, std::size_t slot_bytes,
                           const Machine& machine, const topology::Topology& topology);

}  // namespace accord::sim
