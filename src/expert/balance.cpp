// Two greedy steps. Replicas: each place beyond one per expert goes to the expert whose replicas have the highest
// load each. Ranks: the replicas, heaviest first, go to the rank with the lowest load among the ranks with room,
// where ranks that lack the expert come first. This is longest-processing-time scheduling with a limit on the items
// per rank (Graham 1969), as in DeepSeek's expert-parallel load balancer.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "accord/expert_parallel.hpp"
#include "expert/config.hpp"

namespace accord {
namespace {

Status invalid_balance(std::string message) {
  return {StatusCode::kInvalidArgument, "balancing experts: " + std::move(message)};
}

/// Number of replicas of each expert.
std::vector<int> replicas_of(std::span<const double> loads, int places) {
  std::vector<int> replicas(loads.size(), 1);
  for (int place = static_cast<int>(loads.size()); place < places; ++place) {
    std::size_t heaviest = 0;
    for (std::size_t e = 1; e < loads.size(); ++e)
      if (loads[e] * replicas[heaviest] > loads[heaviest] * replicas[e]) heaviest = e;
    ++replicas[heaviest];
  }
  return replicas;
}

}  // namespace

Result<ExpertPlacement> balance_experts(std::span<const double> loads, int ranks, int per_rank) {
  if (loads.empty()) return invalid_balance("there are no loads");
  if (ranks < 1 || per_rank < 1)
    return invalid_balance(
        fmt::format("expected at least 1 rank and 1 expert per rank, got {} and {}", ranks, per_rank));
  for (std::size_t e = 0; e < loads.size(); ++e)
    if (!std::isfinite(loads[e]) || loads[e] < 0)
      return invalid_balance(fmt::format("the load of expert {} is {}", e, loads[e]));
  const std::int64_t places = std::int64_t{ranks} * per_rank;
  if (places < static_cast<std::int64_t>(loads.size()) || places > expert::kMaxExperts)
    return invalid_balance(fmt::format("{} ranks with {} experts each have {} places, expected {} to {}", ranks,
                                       per_rank, places, loads.size(), expert::kMaxExperts));

  const std::vector<int> replicas = replicas_of(loads, static_cast<int>(places));
  std::vector<int> order;
  for (std::size_t e = 0; e < loads.size(); ++e) order.insert(order.end(), replicas[e], static_cast<int>(e));
  const auto share = [&](int e) { return loads[e] / replicas[e]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return share(a) > share(b); });

  ExpertPlacement placement(static_cast<std::size_t>(ranks));
  std::vector<double> work(ranks, 0.0);
  for (const int e : order) {
    const auto has_room = [&](int rank) { return static_cast<int>(placement[rank].size()) < per_rank; };
    const auto has_expert = [&](int rank) { return std::count(placement[rank].begin(), placement[rank].end(), e) > 0; };
    int best = -1;
    for (int rank = 0; rank < ranks; ++rank) {
      if (!has_room(rank)) continue;
      if (best < 0 || std::pair(has_expert(rank), work[rank]) < std::pair(has_expert(best), work[best])) best = rank;
    }
    placement[best].push_back(e);
    work[best] += share(e);
  }
  for (std::vector<int>& list : placement) std::sort(list.begin(), list.end());
  return placement;
}

}  // namespace accord
