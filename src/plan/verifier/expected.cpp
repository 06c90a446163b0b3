// With k chunks per part: broadcast and send/recv give the root's chunk, (all_)gather gives chunk j of rank p as
// output p * k + j, scatter the root's chunk rank * k + j, all_to_all that chunk of every rank, and the reductions
// the canonical tree over all ranks. A difference is described by what a person would check first: foreign data, a
// missing rank, a rank that counts twice, and only then the order.

#include "plan/verifier/expected.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "plan/step_rules.hpp"

namespace accord::plan {
namespace {

constexpr std::size_t kMaxShownLeaves = 20;

Term sum_over_ranks(const Plan& plan, int chunk, int round, Expressions& expressions) {
  std::vector<Term> terms;
  terms.reserve(static_cast<std::size_t>(plan.size));
  for (Rank rank = 0; rank < plan.size; ++rank) terms.push_back(expressions.leaf({rank, chunk, round}));
  return expressions.tree(terms);
}

// The number of leaves to examine: a correct term has as many as there are ranks.
std::size_t max_leaves(const Plan& plan) { return 4 * static_cast<std::size_t>(plan.size) + 4; }

std::string leaf_text(const Leaf& leaf) { return to_string(Chunk{leaf.rank, Space::kInput, leaf.chunk}); }

std::string foreign_text(const Leaf& wanted, const Leaf& got) {
  if (wanted.round != got.round) return fmt::format("holds data of another round, {}", leaf_text(got));
  return fmt::format("holds {} instead of {}", leaf_text(got), leaf_text(wanted));
}

}  // namespace

std::optional<Term> expected_output(const Plan& plan, Rank rank, int chunk, int round, Expressions& expressions) {
  if (!holds(traits_of(plan.collective).output, rank, plan.root)) return std::nullopt;
  const int part = length_classes(plan);
  switch (plan.collective) {
    case Collective::kBarrier: return std::nullopt;
    case Collective::kSendRecv:
    case Collective::kBroadcast: return expressions.leaf({plan.root, chunk, round});
    case Collective::kScatter: return expressions.leaf({plan.root, rank * part + chunk, round});
    case Collective::kGather:
    case Collective::kAllGather: return expressions.leaf({chunk / part, chunk % part, round});
    case Collective::kAllToAll: return expressions.leaf({chunk / part, rank * part + chunk % part, round});
    case Collective::kReduceScatter: return sum_over_ranks(plan, rank * part + chunk, round, expressions);
    case Collective::kReduce:
    case Collective::kAllReduce: return sum_over_ranks(plan, chunk, round, expressions);
  }
  return std::nullopt;
}

bool same_contributions(const Plan& plan, Term a, Term b, const Expressions& expressions) {
  std::vector<Leaf> of_a = expressions.leaves(a, max_leaves(plan)), of_b = expressions.leaves(b, max_leaves(plan));
  std::ranges::sort(of_a);
  std::ranges::sort(of_b);
  return of_a == of_b;
}

std::string difference_text(const Plan& plan, Term wanted, Term got, const Expressions& expressions) {
  const std::size_t limit = max_leaves(plan);
  const std::vector<Leaf> belongs = expressions.leaves(wanted, limit);
  std::map<Leaf, int> counts;
  for (const Leaf& leaf : expressions.leaves(got, limit)) ++counts[leaf];

  for (const auto& [leaf, count] : counts) {
    const bool meant = std::ranges::find(belongs, leaf) != belongs.end();
    if (!meant) return foreign_text(belongs.front(), leaf);
  }
  std::vector<Rank> missing;
  for (const Leaf& leaf : belongs) {
    if (!counts.contains(leaf)) missing.push_back(leaf.rank);
  }
  if (!missing.empty()) return "lacks the contribution of " + accord::ranks_text(missing);
  for (const auto& [leaf, count] : counts) {
    if (count > 1) return fmt::format("holds the contribution of rank {} {} times", leaf.rank, count);
  }
  if (plan.order == Order::kSwitch)
    return "is not the sum of the switch that rank 0 holds: their bits may differ, so one rank has to send its sum to "
           "all";
  return fmt::format("adds up in the wrong order: {} where {} is {}", expressions.ranks_text(got, kMaxShownLeaves),
                     plan.order == Order::kFixed ? "that of rank 0" : "the canonical one",
                     expressions.ranks_text(wanted, kMaxShownLeaves));
}

}  // namespace accord::plan
