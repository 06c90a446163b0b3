#pragma once
// Which rank holds which expert, as tables.

#include <cstdint>
#include <span>
#include <vector>

#include "accord/expert_parallel.hpp"

namespace accord::expert {

/// A placement that was checked. A place is an expert on a rank, counted rank by rank, on each rank in ascending (global id, replica).
struct Placement {
  int experts = 0;
  std::vector<int> first_place;    ///< [ranks + 1]
  std::vector<int> expert;         ///< [places]: global id
  std::vector<Rank> holder;        ///< [places]
  std::vector<int> first_replica;  ///< [experts + 1], into replicas
  std::vector<int> replicas;       ///< [places]: places by expert, those of one ascending

  int ranks() const { return static_cast<int>(first_place.size()) - 1; }
  int places() const { return static_cast<int>(expert.size()); }
  std::span<const int> experts_of(Rank rank) const {
    return std::span(expert).subspan(first_place[rank], first_place[rank + 1] - first_place[rank]);
  }
  /// Where the choice of `chosen` by a token goes.
  int place_of(int chosen, Rank rank, std::int64_t token) const {
    const int first = first_replica[chosen], count = first_replica[chosen + 1] - first;
    return replicas[count == 1 ? first : first + (rank + token) % count];
  }
};

/// kInvalidArgument: the lists are not one for each of `ranks` ranks, ascending, of ids below `experts`, with every expert in at least one.
Result<Placement> make_placement(const ExpertPlacement& lists, int experts, int ranks);

/// The most different sums that a token's rows on one rank can come to in the canonical order, where `top_k` choices are made: 1 if the experts
/// of each rank are all that are below some node of the tree.
int most_nodes(const Placement& placement, int top_k);

}  // namespace accord::expert
