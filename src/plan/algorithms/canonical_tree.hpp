#pragma once
// The canonical tree over the ranks, block by block, and recursive doubling and halving along it, for any number of
// ranks.

#include <vector>

#include "plan/builder.hpp"

namespace accord::plan {

/// The merge of the two halves of a block of ranks: [first, middle), a power of two, and [middle, last), which is not
/// larger.
struct Merge {
  Rank first = 0;
  Rank middle = 0;
  Rank last = 0;

  bool on_left(Rank rank) const { return rank < middle; }
  /// Number of ranks in the half that does not contain `rank`.
  int other_half_of(Rank rank) const { return on_left(rank) ? last - middle : middle - first; }
  /// The rank of the other half that serves `rank`: the one at the same position, wrapping around if that half is
  /// smaller.
  Rank partner(Rank rank) const;
  /// The ranks of the other half that `rank` serves: one, none or several of the left, at most one of the right.
  std::vector<Rank> served_by(Rank rank) const;
};

/// The blocks of more than one rank that contain `rank`, the smallest first; at most ceil(log2 size). Two ranks are
/// in different halves of exactly one block, so one signal id is enough for each pair.
std::vector<Merge> merges_of(Rank rank, int size);

/// {mine, theirs} in the tree's order: the left half's sum first.
std::vector<Chunk> in_order(const Merge& merge, Rank rank, Chunk mine, Chunk theirs);

/// All-gather of n output chunks by recursive doubling, as run by `rank`, with signals `id`. REQUIRES: with more than
/// one rank, chunk `rank` is in its output and in its scratch.
void gather_by_doubling(PlanBuilder& plan, Rank rank, int size, int id);

/// Reduce-scatter of n input chunks by recursive halving, as run by `rank`, with signals `id`: the sum of chunk
/// `rank` over all ranks is stored in `sums`. Uses scratch and, with more than two ranks, partials of n chunks.
void reduce_by_halving(PlanBuilder& plan, Rank rank, int size, int id, std::vector<Chunk> sums);

}  // namespace accord::plan
