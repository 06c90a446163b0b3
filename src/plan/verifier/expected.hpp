#pragma once
// The results that a collective requires.

#include <optional>
#include <string>

#include "plan/plan.hpp"
#include "plan/verifier/expression.hpp"

namespace accord::plan {

/// The required content of output chunk `chunk` of `rank` after round `round`; nullopt if the rank has no output.
std::optional<Term> expected_output(const Plan& plan, Rank rank, int chunk, int round, Expressions& expressions);

/// Whether both terms add the same contributions equally often, in any order.
bool same_contributions(const Plan& plan, Term a, Term b, const Expressions& expressions);

/// Describes how `got` differs from `wanted`: "lacks the contribution of rank 2", ...
std::string difference_text(const Plan& plan, Term wanted, Term got, const Expressions& expressions);

}  // namespace accord::plan
