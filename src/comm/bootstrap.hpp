#pragma once
// How ranks that know only their number become a connected group.

#include "comm/exchange.hpp"
#include "comm/group.hpp"

namespace accord::comm {

/// kInvalidArgument if a request is wrong by itself: then this rank has its error here and now, and no other is asked.
Status check(const JoinRequest& request);

/// Agrees on size and options, looks at where all ranks run, chooses the transport that reaches all, and connects.
Result<std::shared_ptr<Group>> join(const JoinRequest& request, const Exchange& exchange);

/// The last half of join(), for ranks whose places are known: splits begin here. REQUIRES: check(request) is ok.
Result<std::shared_ptr<Group>> connect(const JoinRequest& request, topology::Topology topology,
                                       const Exchange& exchange);

}  // namespace accord::comm
