#pragma once
// How the ranks of an engine find out whether all of them are ready, and of the same package.

#include <map>
#include <string>

#include "accord/communicator.hpp"

namespace accord::engine {

/// What one rank has to say: how its own part went, and what it loaded.
struct RankOutcome {
  Status status;
  std::string digest;                          ///< equal if and only if the ranks fit together
  std::string failed = "could not get ready";  ///< what the others call a status that is not ok
};

/// Exchanges outcomes over every communicator, in the order of their names. Ok if every rank that was heard of is ok and all have
/// the same digest. Otherwise each rank gets an error: its own failure, or that of the first rank that failed, naming it,
/// or kMismatch naming the ranks that loaded something else than most. A failure that one group shows is passed on in those
/// that come after. Collective; also a rank that failed has to call it. Ranks wait an hour for each other, not the communicators'
/// timeouts.
Status agree(const std::map<std::string, Communicator>& communicators, RankOutcome mine);

}  // namespace accord::engine
