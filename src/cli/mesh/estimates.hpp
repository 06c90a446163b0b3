#pragma once
// How long a call of each family's groups takes on a machine, in virtual time.

#include <optional>
#include <vector>

#include "accord/mesh.hpp"
#include "sim/machine.hpp"

namespace accord::cli {

struct MeshCall {
  Collective collective = Collective::kAllReduce;
  std::size_t bytes = 0;  ///< as in a selection table: of one part if the collective divides a buffer
};

/// Seconds of a call of the group of one rank.
struct FamilySeconds {
  double alone = 0;
  double together = 0;  ///< of it and the family's other groups on its hosts, which call at once, until all have ended
};

/// The ranks that are simulated at once, at most.
constexpr int kMostEstimatedRanks = 1024;

/// Returns the seconds by family; nullopt for groups of one rank, and if the calls have more than kMostEstimatedRanks
/// ranks. Fails if the mesh does not fit the machine. Cost: up to seconds for each family.
Result<std::vector<std::optional<FamilySeconds>>> estimate_families(const MeshPlan& plan, Rank rank,
                                                                    const MeshCall& call, const sim::Machine& machine);

}  // namespace accord::cli
