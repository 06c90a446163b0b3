// A node is reached from the root by adding its bits from the highest to the lowest. Its parent therefore lacks the
// lowest bit, and its subtree has as many nodes as that bit's value, as far as they exist.

#include "plan/algorithms/binomial_tree.hpp"

#include <algorithm>

namespace accord::plan {

int BinomialTree::span(int node) const { return node == 0 ? size_ : std::min(node & -node, size_ - node); }

std::vector<int> BinomialTree::children(int node) const {
  std::vector<int> children;
  for (int distance = 1; distance < span(node); distance *= 2) children.push_back(node + distance);
  return children;
}

std::vector<int> BinomialTree::children_largest_first(int node) const {
  std::vector<int> children = this->children(node);
  std::reverse(children.begin(), children.end());
  return children;
}

}  // namespace accord::plan
