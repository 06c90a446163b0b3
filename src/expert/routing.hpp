#pragma once
// The destination of every choice of every token: a pure function of the ids, equal on all ranks.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "accord/expert_parallel.hpp"
#include "expert/placement.hpp"

namespace accord::expert {

/// The parameters of a map.
struct RoutingShape {
  int top_k = 0;
  int alignment = 1;
  std::int64_t max_recv_rows = 0;  ///< 0: unlimited
};

/// A choice is an index into the ids of all ranks, by rank, token and k: (first_token[rank] + token) * top_k + k.
struct Routing {
  RoutingShape shape;
  std::vector<std::int64_t> first_token;  ///< [ranks + 1]
  std::vector<std::int32_t> expert;       ///< [choices]: global id, -1 for none
  std::vector<std::int32_t> place;        ///< [choices]: destination; -1 for none and for dropped choices
  std::vector<std::int32_t> slot;         ///< [choices]: slot at the destination, valid unless place is -1

  std::vector<std::int64_t> rows;     ///< [places]: rows of each expert
  std::vector<std::int64_t> counts;   ///< [places]: the same with padding
  std::vector<std::int64_t> offsets;  ///< [places]: first slot
  std::vector<ExpertRankCounts> ranks;
  std::vector<ExpertChoice> dropped;  ///< ascending
  bool overflows = false;             ///< a rank would get more rows than its capacity

  std::int64_t choices() const { return first_token.back() * shape.top_k; }
  std::int64_t tokens_of(Rank rank) const { return first_token[rank + 1] - first_token[rank]; }
  std::int64_t choice(Rank rank, std::int64_t token, int k) const {
    return (first_token[rank] + token) * shape.top_k + k;
  }
  /// Calls use(rank, token, k, choice) for each choice, in ascending order.
  template <typename Use>
  void for_each_choice(Use use) const {
    std::int64_t choice = 0;
    for (Rank rank = 0; rank + 1 < static_cast<Rank>(first_token.size()); ++rank)
      for (std::int64_t token = 0; token < tokens_of(rank); ++token)
        for (int k = 0; k < shape.top_k; ++k) use(rank, token, k, choice++);
  }
};

/// Reserves memory for `choices` choices, so that the functions below allocate nothing.
void reserve(Routing& routing, const Placement& placement, std::int64_t choices);

/// Writes `ids` ([tokens, top_k] int32 or int64) to `to`. Ids that are out of range, or occur earlier in their token,
/// become -1 and are counted in `counts`.
void read_ids(const ConstBuffer& ids, int top_k, int experts, std::span<std::int32_t> to, ExpertRankCounts& counts);

/// Fills in everything except first_token, expert and the counts of read_ids().
void route(Routing& routing, const Placement& placement);

/// Overflow policies. REQUIRES: route(). kDropBySlot: drops choices whose slot is beyond the capacity.
void drop_by_slot(Routing& routing, const Placement& placement);
/// kDropByWeight: drops choices of each overflowing rank from the lowest weight up, until the rest fits with its
/// padding. A NaN is the lowest weight; of equal weights the last by (rank, token, k) is dropped first. Then, in the
/// opposite order, dropped choices that fit into padding come back. `weights`: [choices].
void drop_by_weight(Routing& routing, const Placement& placement, std::span<const double> weights);
/// kFail: returns kResourceExhausted, which names the ranks of `group` that would get more rows than their capacity.
Status overflow_error(const Routing& routing, std::string_view group);

}  // namespace accord::expert
