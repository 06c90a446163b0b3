// Largest first (Pisarchyk and Lee 2020, "greedy by size"): the pieces already placed that are alive at the same time
// divide the arena into gaps. The smallest gap that is large enough is used, or else the place behind the last piece.
// Pieces that do not share their place follow all others.
#include "engine/program/memory_plan.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/rounding.hpp"

namespace accord::engine {
namespace {

struct Placed {
  std::size_t begin;
  std::size_t end;
  int first;
  int last;
};

// `placed` is ordered by begin.
std::size_t best_offset(const std::vector<Placed>& placed, const Lifetime& piece, std::size_t bytes) {
  std::size_t free_from = 0;
  std::size_t best = 0;
  std::size_t best_gap = std::numeric_limits<std::size_t>::max();
  for (const Placed& other : placed) {
    if (other.last < piece.first || piece.last < other.first) continue;
    if (other.begin > free_from && other.begin - free_from >= bytes && other.begin - free_from < best_gap) {
      best = free_from;
      best_gap = other.begin - free_from;
    }
    free_from = std::max(free_from, other.end);
  }
  return best_gap == std::numeric_limits<std::size_t>::max() ? free_from : best;
}

}  // namespace

MemoryPlan plan_memory(std::span<const Lifetime> lifetimes) {
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
  MemoryPlan plan;
  plan.offsets.resize(lifetimes.size());
  std::vector<Placed> placed;
  const auto sharing = order.begin() + static_cast<std::ptrdiff_t>(std::min(order.size(), kMaxSharing));
  for (const std::size_t i : std::span(order.begin(), sharing)) {
    const Lifetime& piece = lifetimes[i];
    const std::size_t bytes = round_up(std::max<std::size_t>(piece.bytes, 1), kArenaAlignment);
    const std::size_t offset = best_offset(placed, piece, bytes);
    plan.offsets[i] = offset;
    plan.bytes = std::max(plan.bytes, offset + bytes);
    const Placed here{offset, offset + bytes, piece.first, piece.last};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), here,
                                   [](const Placed& a, const Placed& b) { return a.begin < b.begin; }),
                  here);
  }
  for (const std::size_t i : std::span(sharing, order.end())) {
    plan.offsets[i] = plan.bytes;
    plan.bytes += round_up(lifetimes[i].bytes, kArenaAlignment);
  }
  return plan;
}

}  // namespace accord::engine
