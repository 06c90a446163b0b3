#pragma once
// The binomial tree over the ranks, used by rooted collectives.

#include <vector>

#include "accord/buffer.hpp"

namespace accord::plan {

/// Ranks are nodes 0 to size - 1, counted around from the root. The subtree of node v is the nodes v to v + span(v) -
/// 1; its children are v + 1, v + 2, v + 4, ... within it. Depth: floor(log2 size).
class BinomialTree {
 public:
  BinomialTree(int size, Rank root) : size_(size), root_(root) {}

  int node(Rank rank) const { return (rank - root_ + size_) % size_; }
  Rank rank(int node) const { return (node + root_) % size_; }
  /// REQUIRES: node > 0.
  static int parent(int node) { return node & (node - 1); }
  /// Nodes in the subtree.
  int span(int node) const;
  /// Children, the smallest subtree first.
  std::vector<int> children(int node) const;
  std::vector<int> children_largest_first(int node) const;

 private:
  int size_;
  Rank root_;
};

}  // namespace accord::plan
