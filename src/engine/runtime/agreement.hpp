#pragma once
// Lets the ranks of an engine agree that all of them are ready and have loaded the same package.

#include <map>
#include <string>

#include "accord/communicator.hpp"

namespace accord::engine {

/// The outcome of one rank: the status of its own work and a digest of what it loaded.
struct RankOutcome {
  Status status;
  std::string digest;                                  ///< equal if and only if the ranks are compatible
  std::string failure_phrase = "could not get ready";  ///< how the other ranks describe a status that is not ok
};

/// Exchanges outcomes over every communicator, in the order of the group names. Returns ok if every rank that
/// reported is ok and all digests are equal. Otherwise each rank gets an error: its own failure; or that of the first
/// rank that failed, naming it; or kMismatch, naming the ranks that loaded something other than most ranks did. A
/// failure seen in one group is passed on to the groups after it. Collective: a rank that failed must call it too.
/// Ranks wait up to an hour for each other, whatever the communicators' timeouts.
Status agree(const std::map<std::string, Communicator>& communicators, RankOutcome mine);

}  // namespace accord::engine
