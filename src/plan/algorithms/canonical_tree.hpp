#pragma once
// The canonical tree over the ranks, block by block, and recursive doubling and halving along it, for any number of ranks.

#include <vector>

#include "plan/builder.hpp"

namespace accord::plan {

/// Where two halves of a block of ranks meet: [first, middle), a power of two, and [middle, last), which is not larger.
struct Merge {
  Rank first = 0;
  Rank middle = 0;
  Rank last = 0;

  bool on_left(Rank rank) const { return rank < middle; }
  /// Ranks in the half that `rank` is not in.
  int other_half_of(Rank rank) const { return on_left(rank) ? last - middle : middle - first; }
  /// The rank of the other half that serves `rank`: the one in the same place of it, counted round where it is smaller.
  Rank partner(Rank rank) const;
  /// The ranks of the other half that `rank` serves: one, none or several of the left, at most one of the right.
  std::vector<Rank> served_by(Rank rank) const;
};

/// The blocks of more than one rank that `rank` belongs to, the smallest first; at most ceil(log2 size). Two ranks are in
/// different halves of exactly one block, so one signal id is enough for each pair.
std::vector<Merge> merges_of(Rank rank, int size);

/// {mine, theirs} as the tree adds them: the left half's sum first.
std::vector<Chunk> in_order(const Merge& merge, Rank rank, Chunk mine, Chunk theirs);

/// All-gather of n output chunks by recursive doubling, as `rank` runs it, over signals `id`. REQUIRES: of more than one rank,
/// chunk `rank` is in its output and in its scratch.
void gather_by_doubling(PlanBuilder& plan, Rank rank, int size, int id);

/// Reduce-scatter of n input chunks by recursive halving, as `rank` runs it, over signals `id`: the sum of chunk `rank` over all
/// ranks goes to `sums`. Uses scratch and, of more than two ranks, partials of n chunks.
void reduce_by_halving(PlanBuilder& plan, Rank rank, int size, int id, std::vector<Chunk> sums);

}  // namespace accord::plan
