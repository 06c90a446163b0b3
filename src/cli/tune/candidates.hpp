#pragma once
// Which ways of serving a collective are worth measuring.

#include <string>
#include <vector>

#include "accord/call.hpp"
#include "accord/status.hpp"
#include "plan/algorithms.hpp"

namespace accord::cli {

/// For example "two_shot" or "two_shot@256k".
struct Candidate {
  std::string name;
  const plan::AlgorithmEntry* algorithm = nullptr;  ///< null: "default"
  std::size_t slot_bytes = 0;                       ///< 0: the communicator's
  std::size_t from_bytes = 0;                       ///< it is not measured at smaller sizes
};

/// Every algorithm of the collective for buffers anywhere in CPU memory, and the same with smaller slots for sizes that
/// do not fit into them.
std::vector<Candidate> all_candidates(Collective collective);

/// Returns "default", and those candidates that these ranks of one host can run. Each plan is verified first; a plan
/// that the verifier rejects is an error. Cost: milliseconds, or seconds for many ranks.
Result<std::vector<Candidate>> candidates_for(Collective collective, int ranks);

/// Whether the cost model gives the candidate a chance at this size: at most 20 times the time of the best. The model
/// is not a measurement, so only hopeless candidates are left out.
bool is_promising(const Candidate& candidate, Collective collective, int ranks, std::size_t bytes);

}  // namespace accord::cli
