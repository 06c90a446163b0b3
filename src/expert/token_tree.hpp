#pragma once
// The canonical order of a token's sum: the binary tree over the bits of the global ids that it chose.
//
// Two ids meet at the node of their highest differing bit. Everything below a node may be added anywhere, by the rank
// or the host that has all of it: the sum is bit-identical.

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "expert/routing.hpp"

namespace accord::expert {

/// One choice of a token, if it has a destination.
struct Leaf {
  std::int32_t expert = 0;  ///< global id
  std::int32_t place = 0;
  std::int32_t slot = 0;
  std::int64_t choice = 0;
};

/// Leaves [first, last) of a token: all its choices below some node of the tree.
struct Node {
  int first = 0;
  int last = 0;
};

/// Writes the leaves of a token to `to` in the order of their ids, and returns their number. `to` holds top_k leaves.
inline int leaves_of(const Routing& routing, Rank rank, std::int64_t token, std::span<Leaf> to) {
  int count = 0;
  const std::int64_t first = routing.choice(rank, token, 0);
  for (std::int64_t c = first; c < first + routing.shape.top_k; ++c) {
    if (routing.place[c] < 0) continue;
    int at = count++;
    for (; at > 0 && to[at - 1].expert > routing.expert[c]; --at) to[at] = to[at - 1];
    to[at] = {routing.expert[c], routing.place[c], routing.slot[c], c};
  }
  return count;
}

/// Height of the node at which two ids meet.
inline int height(std::int32_t a, std::int32_t b) { return std::bit_width(static_cast<std::uint32_t>(a ^ b)); }

/// Calls use(node) for the largest nodes within `whole` whose leaves all have the same owner, in ascending order.
template <typename Owner, typename Use>
void for_each_node(std::span<const Leaf> leaves, Node whole, const Owner& owner, const Use& use) {
  bool has_one_owner = true;
  int highest = whole.first;  // the node splits into its two halves after this leaf
  for (int i = whole.first; i + 1 < whole.last; ++i) {
    has_one_owner &= owner(leaves[i]) == owner(leaves[i + 1]);
    const auto gap = [&](int at) { return height(leaves[at].expert, leaves[at + 1].expert); };
    if (gap(i) > gap(highest)) highest = i;
  }
  if (whole.first == whole.last) return;
  if (has_one_owner) return use(whole);
  for_each_node(leaves, {whole.first, highest + 1}, owner, use);
  for_each_node(leaves, {highest + 1, whole.last}, owner, use);
}

/// The order in which the sums of some nodes are added: how often the last two are added once the i-th is available.
class MergeOrder {
 public:
  explicit MergeOrder(int max_nodes) : gaps_(static_cast<std::size_t>(max_nodes)) {}

  /// Number of additions after the node with the id `expert`. `next`: id of the following node, -1 after the last.
  std::uint16_t merges_after(std::int32_t expert, std::int32_t next) {
    const int gap = next < 0 ? 64 : height(expert, next);
    std::uint16_t merges = 0;
    for (; depth_ > 0 && gaps_[depth_ - 1] < gap; --depth_) ++merges;
    if (next < 0)
      depth_ = 0;
    else
      gaps_[depth_++] = gap;
    return merges;
  }

 private:
  std::vector<int> gaps_;  // between sums that wait
  int depth_ = 0;
};

}  // namespace accord::expert
