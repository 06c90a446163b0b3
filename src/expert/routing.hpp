#pragma once
// Where every choice of every token goes: a pure function of the ids, equal on all ranks.

#include <cstdint>
#include <span>
#include <vector>

#include "accord/expert_parallel.hpp"
#include "expert/placement.hpp"

namespace accord::expert {

/// What a map is made for.
struct RoutingShape {
  int top_k = 0;
  int alignment = 1;
  std::int64_t max_recv_rows = 0;  ///< 0: none
};

/// A choice is a position in the ids of all ranks, rank by rank, token by token: (first_token[rank] + token) * top_k + k.
struct Routing {
  RoutingShape shape;
  std::vector<std::int64_t> first_token;  ///< [ranks + 1]
  std::vector<std::int32_t> expert;       ///< [choices]: global id, -1 for none
  std::vector<std::int32_t> place;        ///< [choices]: where it goes; -1 for none and for dropped ones
  std::vector<std::int32_t> slot;         ///< [choices]: there, where place is not -1

  std::vector<std::int64_t> rows;     ///< [places]: of each expert
  std::vector<std::int64_t> counts;   ///< [places]: the same with padding
  std::vector<std::int64_t> offsets;  ///< [places]: the first slot
  std::vector<ExpertRankCounts> ranks;
  std::vector<ExpertChoice> dropped;  ///< ascending
  bool overflows = false;             ///< a rank would get more rows than its capacity

  std::int64_t choices() const { return first_token.back() * shape.top_k; }
  std::int64_t tokens_of(Rank rank) const { return first_token[rank + 1] - first_token[rank]; }
  std::int64_t choice(Rank rank, std::int64_t token, int k) const {
    return (first_token[rank] + token) * shape.top_k + k;
  }
  /// Calls use(rank, token, k, choice) for each choice, ascending.
  template <typename Use>
  void for_each_choice(Use use) const {
    std::int64_t choice = 0;
    for (Rank rank = 0; rank + 1 < static_cast<Rank>(first_token.size()); ++rank)
      for (std::int64_t token = 0; token < tokens_of(rank); ++token)
        for (int k = 0; k < shape.top_k; ++k) use(rank, token, k, choice++);
  }
};

/// Memory for `choices` choices, so that what follows allocates nothing.
void reserve(Routing& routing, const Placement& placement, std::int64_t choices);

/// Writes `ids` ([tokens, top_k] int32 or int64) to `experts`: -1 for what is no choice, because it is out of range or stands in its token
/// before. Counts these.
void read_ids(const ConstBuffer& ids, int top_k, int experts, std::span<std::int32_t> to, ExpertRankCounts& counts);

/// Fills in all but first_token, expert and what read_ids() counted.
void route(Routing& routing, const Placement& placement);

/// The overflow policies. REQUIRES: route(). kDropBySlot: choices whose slot is beyond the capacity.
void drop_by_slot(Routing& routing, const Placement& placement);
/// kDropByWeight: the choices of a rank that overflows are dropped from the lowest weight up, a NaN being the lowest, of equal ones the last by (rank,
/// token, k) first, until what is left fits with its padding. Then those come back, in the opposite order, that fit into padding. `weights`: [choices].
void drop_by_weight(Routing& routing, const Placement& placement, std::span<const double> weights);

}  // namespace accord::expert
