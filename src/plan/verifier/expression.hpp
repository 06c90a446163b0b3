#pragma once
// The content of a chunk as a term: nothing, a part of a rank's input, or the sum of two terms. Equal terms have
// equal ids.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "accord/status.hpp"

namespace accord::plan {

/// A term; kUnknown for memory that has not been written.
enum class Term : std::uint32_t { kUnknown = 0 };

/// Slice `round` of input chunk `chunk` of `rank`.
struct Leaf {
  Rank rank = 0;
  int chunk = 0;
  int round = 0;
  auto operator<=>(const Leaf&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees a 0 in it
};

class Expressions {
 public:
  Term leaf(const Leaf& leaf);
  Term sum(Term left, Term right);
  /// The canonical tree over `terms`: split at the largest power of two below their number.
  Term tree(std::span<const Term> terms);

  /// The sum of `terms` in an unknown order: a different term each time.
  Term unordered(std::span<const Term> terms);

  /// The leaves from left to right, each as often as it occurs; at most `limit` of them (a term may share parts with
  /// itself and have more leaves than memory holds).
  std::vector<Leaf> leaves(Term term, std::size_t limit) const;
  /// "((0 + 1) + 2)", the ranks of its leaves; "..." from `limit` leaves on.
  std::string ranks_text(Term term, std::size_t limit) const;

 private:
  struct Node {
    Leaf leaf;
    Term left = Term::kUnknown;  // unknown for a leaf
    Term right = Term::kUnknown;
  };
  const Node& node(Term term) const { return nodes_[static_cast<std::size_t>(term)]; }
  Term add(const Node& node);

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::map<Leaf, Term> leaves_;
  std::map<std::pair<Term, Term>, Term> sums_;
};

}  // namespace accord::plan
