#pragma once
// Which ways of serving a collective are worth measuring.

#include <string>
#include <vector>

#include "accord/call.hpp"
#include "accord/status.hpp"

namespace accord::cli {

/// For example "two_shot" or "two_shot@256k".
struct Candidate {
  std::string name;
  std::size_t from_bytes = 0;  ///< it is not measured at smaller sizes
};

/// Returns "default", every algorithm of the collective that these ranks can run, and the same with smaller slots for
/// sizes that do not fit into them. Each plan is verified first; a plan that the verifier rejects is an error. Cost:
/// milliseconds, or seconds for many ranks.
Result<std::vector<Candidate>> candidates_for(Collective collective, int ranks);

/// Whether the cost model gives the candidate a chance at this size: at most 20 times the time of the best. The model
/// is not a measurement, so only hopeless candidates are left out.
bool is_promising(const Candidate& candidate, Collective collective, int ranks, std::size_t bytes);

}  // namespace accord::cli
