#pragma once
// What a collective asks for.

#include <optional>
#include <string>

#include "plan/plan.hpp"
#include "plan/verifier/expression.hpp"

namespace accord::plan {

/// What output chunk `chunk` of `rank` must hold after round `round`; nullopt where the rank has no output.
std::optional<Term> expected_output(const Plan& plan, Rank rank, int chunk, int round, Expressions& expressions);

/// Whether they add up the same contributions, each as often, in whatever order.
bool same_contributions(const Plan& plan, Term a, Term b, const Expressions& expressions);

/// How `got` differs from `wanted`: "lacks the contribution of rank 2", ...
std::string difference_text(const Plan& plan, Term wanted, Term got, const Expressions& expressions);

}  // namespace accord::plan
