#pragma once
// Which rank holds which expert, as tables.

#include <cstdint>
#include <span>
#include <vector>

#include "accord/expert_parallel.hpp"

namespace accord::expert {

/// A checked placement. A place is an expert on a rank. Places are numbered rank by rank, and within a rank in
/// ascending order of (global id, replica).
struct Placement {
  int experts = 0;
  std::vector<int> first_place;    ///< [ranks + 1]
  std::vector<int> expert;         ///< [places]: global id
  std::vector<Rank> holder;        ///< [places]
  std::vector<int> first_replica;  ///< [experts + 1]: index into replicas
  std::vector<int> replicas;       ///< [places]: places by expert, ascending within an expert

  int ranks() const { return static_cast<int>(first_place.size()) - 1; }
  int places() const { return static_cast<int>(expert.size()); }
  std::span<const int> experts_of(Rank rank) const {
    return std::span(expert).subspan(first_place[rank], first_place[rank + 1] - first_place[rank]);
  }
  /// Returns the place to which a token's choice of `chosen` goes.
  int place_of(int chosen, Rank rank, std::int64_t token) const {
    const int first = first_replica[chosen], count = first_replica[chosen + 1] - first;
    return replicas[count == 1 ? first : first + (rank + token) % count];
  }
};

/// Fails with kInvalidArgument unless there is one list for each of `ranks` ranks, all lists are ascending, all ids
/// are below `experts`, and every expert is in at least one list.
Result<Placement> make_placement(const ExpertPlacement& lists, int experts, int ranks);

/// Maximum number of different sums that a token's rows on one rank form in the canonical order, if it makes `top_k`
/// choices. It is 1 if the experts of each rank are exactly those below some node of the tree.
int max_nodes(const Placement& placement, int top_k);

}  // namespace accord::expert
