// Places are numbered in the order of the lists. The replicas of an expert are its places in that order.
#include "expert/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

namespace accord {

Result<ExpertPlacement> uniform_expert_placement(int experts, int ranks) {
  if (experts < 1 || ranks < 1 || experts % ranks != 0)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} experts cannot be divided evenly among {} ranks; give a placement", experts, ranks));
  ExpertPlacement placement(static_cast<std::size_t>(ranks), std::vector<int>(experts / ranks));
  int first = 0;
  for (std::vector<int>& list : placement) {
    std::iota(list.begin(), list.end(), first);
    first += experts / ranks;
  }
  return placement;
}

}  // namespace accord

namespace accord::expert {
namespace {

Status invalid_placement(std::string message) {
  return {StatusCode::kInvalidArgument, "placement: " + std::move(message)};
}

/// Whether [first, last] are exactly the ids below `experts` that share the leading bits common to `first` and
/// `last`.
bool is_subtree(int first, int last, int experts) {
  const int bits = std::bit_width(static_cast<unsigned>(first ^ last));
  const std::int64_t begin = first >> bits << bits;
  return first == begin && last == std::min<std::int64_t>(begin + (std::int64_t{1} << bits), experts) - 1;
}

}  // namespace

Result<Placement> make_placement(const ExpertPlacement& lists, int experts, int ranks) {
  if (lists.size() != static_cast<std::size_t>(ranks))
    return invalid_placement(
        fmt::format("there are lists for {} ranks, but the group has {} ranks", lists.size(), ranks));
  Placement placement;
  placement.experts = experts;
  placement.first_place.push_back(0);
  std::vector<int> replicas(experts, 0);
  for (Rank rank = 0; rank < ranks; ++rank) {
    const std::vector<int>& list = lists[rank];
    for (const int expert : list) {
      if (expert < 0 || expert >= experts)
        return invalid_placement(
            fmt::format("rank {} has expert {}, but the experts are 0 to {}", rank, expert, experts - 1));
      ++replicas[expert];
    }
    if (!std::is_sorted(list.begin(), list.end()))
      return invalid_placement(fmt::format("the experts of rank {} are not in ascending order", rank));
    placement.expert.insert(placement.expert.end(), list.begin(), list.end());
    placement.holder.insert(placement.holder.end(), list.size(), rank);
    placement.first_place.push_back(placement.places());
  }
  const auto missing = std::find(replicas.begin(), replicas.end(), 0);
  if (missing != replicas.end())
    return invalid_placement(fmt::format("no rank has expert {}", missing - replicas.begin()));

  placement.first_replica.resize(experts + 1, 0);
  std::partial_sum(replicas.begin(), replicas.end(), placement.first_replica.begin() + 1);
  placement.replicas.resize(placement.places());
  std::vector<int> next(placement.first_replica.begin(), placement.first_replica.end() - 1);
  for (int place = 0; place < placement.places(); ++place) placement.replicas[next[placement.expert[place]]++] = place;
  return placement;
}

int max_nodes(const Placement& placement, int top_k) {
  int nodes = 0;
  for (Rank rank = 0; rank < placement.ranks(); ++rank) {
    const std::span<const int> experts = placement.experts_of(rank);
    if (experts.empty()) continue;
    const bool has_no_replicas = placement.places() == placement.experts;
    const bool consecutive = experts.back() - experts.front() + 1 == static_cast<int>(experts.size());
    const bool is_one_node =
        has_no_replicas && consecutive && is_subtree(experts.front(), experts.back(), placement.experts);
    nodes = std::max(nodes, is_one_node ? 1 : std::min(top_k, static_cast<int>(experts.size())));
  }
  return nodes;
}

}  // namespace accord::expert
