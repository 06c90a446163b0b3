#pragma once
// Runs a schedule in virtual time.

#include <cstdint>
#include <vector>

#include "accord/status.hpp"
#include "sim/journal.hpp"
#include "sim/messages.hpp"
#include "sim/network.hpp"
#include "sim/schedule.hpp"

namespace accord::sim {

/// Times of a rank, in seconds since the simulation began.
struct RankTimes {
  double end = 0;
  double working = 0;  ///< its processors were used
  double waiting = 0;  ///< for events and for other ranks' rounds
};

struct Times {
  double seconds = 0;  ///< until the last rank has ended
  std::vector<RankTimes> ranks;
  std::vector<double> link_bytes;  ///< carried, by link of the network
  std::vector<Link> links;         ///< of the network
  std::uint64_t operations = 0;    ///< that were simulated, of `simulated_ranks` in all rounds
  int simulated_ranks = 0;         ///< the others do the same, shifted
};

/// Runs the tasks, as soon as those before them have ended. `journal`: null, or what gets all that happens. Fails with
/// kInternal, which names a rank, if ranks wait forever; verified plans never do.
Result<Times> simulate(const Schedule& schedule, const Machine& machine, const topology::Topology& topology,
                       Sharing sharing = Sharing::kFair, Journal* journal = nullptr);

/// Runs a call of all ranks, which they begin at time 0. Times are those of all ranks and links, also of those for
/// which others stand.
Result<Times> simulate(Programs programs, const Machine& machine, const topology::Topology& topology,
                       Sharing sharing = Sharing::kFair, Journal* journal = nullptr);

}  // namespace accord::sim
