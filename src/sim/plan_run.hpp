#pragma once
// Runs a plan in virtual time.

#include <cstdint>
#include <vector>

#include "accord/status.hpp"
#include "sim/messages.hpp"
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
  std::vector<Link> links;         ///< of the network
  std::uint64_t operations = 0;    ///< that were simulated, of `simulated_ranks` in all rounds
  int simulated_ranks = 0;         ///< the others do the same, shifted
};

/// Runs the programs, which all begin at time 0. Fails with kInternal, which names a rank, if ranks wait forever; no
/// verified plan does.
Result<PlanTimes> run_programs(const Programs& programs, const Machine& machine, const topology::Topology& topology,
                               Sharing sharing = Sharing::kFair);

}  // namespace accord::sim
