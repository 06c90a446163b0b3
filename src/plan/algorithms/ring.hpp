#pragma once
// Sums and copies that travel around a ring of all ranks.

#include <vector>

#include "plan/builder.hpp"

namespace accord::plan {

/// All-gather of n output chunks around the ring, as run by `rank`, with n - 1 signals from `first_id` on. REQUIRES:
/// with more than one rank, chunk `rank` is in its output and in its scratch.
void gather_along_ring(PlanBuilder& plan, Rank rank, int size, int first_id);

/// Reduce-scatter of n input chunks around the ring, as run by `rank`, with signals 0 to n - 2: the sum of chunk
/// `rank` is stored in `sums`, added up in the ring's order (Order::kFixed): chunk c from rank c + 1 around to rank
/// c, each adding its own to what arrives. Uses n chunks of scratch and, with more than two ranks, n - 2 of partials.
void reduce_along_ring(PlanBuilder& plan, Rank rank, int size, std::vector<Chunk> sums);

}  // namespace accord::plan
