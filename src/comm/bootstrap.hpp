#pragma once
// How ranks that know only their number become a connected group.

#include "comm/exchange.hpp"
#include "comm/group.hpp"

namespace accord::comm {

/// The first step, in which ranks say who they are, or why they do not take part.
inline constexpr std::string_view kHello = "hello";

/// Agrees on size and options, looks at where all ranks run, chooses the transport that reaches all, and connects.
Result<std::shared_ptr<Group>> join(const JoinRequest& request, const Exchange& exchange);

/// The last half of join(), for ranks whose places are known: splits begin here. kMismatch too if the options differ. REQUIRES: check(request) is ok.
Result<std::shared_ptr<Group>> connect(const JoinRequest& request, topology::Topology topology,
                                       const Exchange& exchange);

/// What is wrong with a request by itself, whatever the others want.
Status check(const JoinRequest& request);

/// What has to be equal on all ranks, in words.
std::string terms(const JoinRequest& request);

/// What a rank says in its first exchange instead of taking part.
std::string refusal(const Status& why);

/// Tells the ranks that wait in `store` for this one that it does not come, and why. Waits a second for them at most.
void decline(JoinRequest request, std::shared_ptr<Store> store, const Status& why);

}  // namespace accord::comm
