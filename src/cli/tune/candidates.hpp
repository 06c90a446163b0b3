#pragma once
// Which ways of serving a collective are worth measuring.

#include <string>
#include <vector>

#include "accord/call.hpp"
#include "accord/status.hpp"

namespace accord::cli {

/// "two_shot" or "two_shot@256k".
struct Candidate {
  std::string name;
  std::size_t from_bytes = 0;  ///< smaller sizes are measured without it
};

/// "default", every algorithm of the collective that these ranks can run, and those with smaller slots for sizes that do not fit these.
/// Each plan is proved right by the verifier first; one that it refuses is the error. Cost: milliseconds, seconds for many ranks.
Result<std::vector<Candidate>> candidates_for(Collective collective, int ranks);

/// Whether the cost model gives the candidate a chance at this size: at most 20 times the time of the best. It is no measurement, so
/// only what is hopeless is left out.
bool has_a_chance(const Candidate& candidate, Collective collective, int ranks, std::size_t bytes);

}  // namespace accord::cli
