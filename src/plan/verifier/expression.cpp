// Terms are interned: a known leaf or pair gets its existing id again, so that two terms are the same tree exactly if
// their ids are equal, whatever their size.

#include "plan/verifier/expression.hpp"

#include <fmt/format.h>

#include <bit>

namespace accord::plan {

Term Expressions::add(const Node& node) {
  nodes_.push_back(node);
  return static_cast<Term>(nodes_.size() - 1);
}

Term Expressions::leaf(const Leaf& leaf) {
  const auto [place, is_new] = leaves_.try_emplace(leaf);
  if (is_new) place->second = add({.leaf = leaf});
  return place->second;
}

Term Expressions::sum(Term left, Term right) {
  const auto [place, is_new] = sums_.try_emplace({left, right});
  if (is_new) place->second = add({.leaf = {}, .left = left, .right = right});
  return place->second;
}

Term Expressions::tree(std::span<const Term> terms) {
  if (terms.size() == 1) return terms[0];
  const std::size_t half = std::bit_floor(terms.size() - 1);
  return sum(tree(terms.first(half)), tree(terms.subspan(half)));
}

Term Expressions::unordered(std::span<const Term> terms) {
  Term sum = terms[0];
  for (const Term term : terms.subspan(1)) sum = add({.leaf = {}, .left = sum, .right = term});
  return sum;
}

std::vector<Leaf> Expressions::leaves(Term term, std::size_t limit) const {
  std::vector<Leaf> found;
  std::vector<Term> open = {term};
  while (!open.empty() && found.size() < limit) {
    const Node& next = node(open.back());
    const bool known = open.back() != Term::kUnknown;
    open.pop_back();
    if (next.left != Term::kUnknown) {
      open.push_back(next.right);
      open.push_back(next.left);
    } else if (known) {
      found.push_back(next.leaf);
    }
  }
  return found;
}

std::string Expressions::ranks_text(Term term, std::size_t limit) const {
  if (leaves(term, limit).size() >= limit) return "...";
  const Node& top = node(term);
  if (top.left == Term::kUnknown) return fmt::format("{}", top.leaf.rank);
  return fmt::format("({} + {})", ranks_text(top.left, limit), ranks_text(top.right, limit));
}

}  // namespace accord::plan
