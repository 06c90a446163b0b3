// The block of all ranks is split at the largest power of two below its size, and so is the half that contains the
// rank, until the rank is alone.
//
// Halving. The sum of chunk c over a block is computed by one rank of the block, its owner there; over all ranks that
// is rank c. The owner of c in a block is also its owner in its own half, and its partner is the owner in the other
// half, from which it reads that half's sum. With 2^k ranks, each step therefore halves the chunks that a rank owns.
// The partials of a chunk can be added to in place, since only its next owner reads them.

#include "plan/algorithms/canonical_tree.hpp"

#include <algorithm>
#include <bit>
#include <set>

namespace accord::plan {
namespace {

// By merge and chunk: the rank that computes the chunk's sum over the merge's block.
std::vector<std::vector<Rank>> owners_of_chunks(Rank rank, int size, const std::vector<Merge>& merges) {
  std::vector<std::vector<Rank>> owners(merges.size(), std::vector<Rank>(static_cast<std::size_t>(size)));
  for (std::size_t m = merges.size(); m-- > 0;) {
    for (int c = 0; c < size; ++c) {
      const auto chunk = static_cast<std::size_t>(c);
      const bool is_whole = m + 1 == merges.size();
      const Rank owner = is_whole ? c : owners[m + 1][chunk];
      const bool is_near = is_whole || merges[m + 1].on_left(owner) == merges[m + 1].on_left(rank);
      owners[m][chunk] = is_near ? owner : merges[m + 1].partner(owner);
    }
  }
  return owners;
}

}  // namespace

Rank Merge::partner(Rank rank) const {
  return on_left(rank) ? middle + (rank - first) % (last - middle) : first + (rank - middle);
}

std::vector<Rank> Merge::served_by(Rank rank) const {
  std::vector<Rank> served;
  const Rank from = on_left(rank) ? middle : first, to = on_left(rank) ? last : middle;
  for (Rank other = from; other < to; ++other) {
    if (partner(other) == rank) served.push_back(other);
  }
  return served;
}

std::vector<Merge> merges_of(Rank rank, int size) {
  std::vector<Merge> merges;
  for (Rank first = 0, last = size; last - first > 1;) {
    const auto half = static_cast<Rank>(std::bit_floor(static_cast<unsigned>(last - first - 1)));
    merges.push_back({first, first + half, last});
    (merges.back().on_left(rank) ? last : first) = first + half;
  }
  std::ranges::reverse(merges);
  return merges;
}

std::vector<Chunk> in_order(const Merge& merge, Rank rank, Chunk mine, Chunk theirs) {
  return merge.on_left(rank) ? std::vector{mine, theirs} : std::vector{theirs, mine};
}

void gather_by_doubling(PlanBuilder& plan, Rank rank, int size, int id) {
  const std::vector<Merge> merges = merges_of(rank, size);
  for (std::size_t m = 0; m < merges.size(); ++m) {
    const Merge& merge = merges[m];
    const Rank from = merge.partner(rank);
    for (const Rank reader : merge.served_by(rank)) plan.on(rank).signal(reader, id);
    plan.on(rank).wait(from, id);
    const bool is_passed_on = std::any_of(merges.begin() + static_cast<std::ptrdiff_t>(m) + 1, merges.end(),
                                          [&](const Merge& later) { return !later.served_by(rank).empty(); });
    const Rank first = merge.on_left(rank) ? merge.middle : merge.first;
    const Rank last = merge.on_left(rank) ? merge.last : merge.middle;
    for (Rank owner = first; owner < last; ++owner) {
      std::vector<Chunk> destinations = {output(rank, owner)};
      if (is_passed_on) destinations.push_back(scratch(rank, owner));
      plan.on(rank).copy(scratch(from, owner), std::move(destinations));
    }
  }
}

void reduce_by_halving(PlanBuilder& plan, Rank rank, int size, int id, std::vector<Chunk> sums) {
  const std::vector<Merge> merges = merges_of(rank, size);
  if (merges.empty()) {
    plan.on(rank).copy(input(rank, rank), std::move(sums));
    return;
  }
  const std::vector<std::vector<Rank>> owners = owners_of_chunks(rank, size, merges);
  for (std::size_t m = 0; m < merges.size(); ++m) {
    const Merge& merge = merges[m];
    const Rank from = merge.partner(rank);
    std::vector<int> owned;
    std::set<Rank> readers;
    for (int c = 0; c < size; ++c) {
      const Rank owner = owners[m][static_cast<std::size_t>(c)];
      if (owner == rank) owned.push_back(c);
      if (merge.on_left(owner) == merge.on_left(rank) || merge.partner(owner) != rank) continue;
      readers.insert(owner);
      if (m == 0) plan.on(rank).copy(input(rank, c), {scratch(rank, c)});
    }
    for (const Rank reader : readers) plan.on(rank).signal(reader, id);
    plan.on(rank).wait(from, id);
    for (const int c : owned) {
      const Chunk mine = m == 0 ? input(rank, c) : partials(rank, c);
      const Chunk theirs = merge.other_half_of(rank) == 1 ? scratch(from, c) : partials(from, c);
      const bool complete = m + 1 == merges.size();
      plan.on(rank).reduce(in_order(merge, rank, mine, theirs), complete ? sums : std::vector{partials(rank, c)});
    }
  }
}

}  // namespace accord::plan
