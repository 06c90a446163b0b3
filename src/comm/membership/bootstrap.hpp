#pragma once
// Turns ranks that know only their number into a connected group.

#include "comm/group.hpp"
#include "comm/membership/exchange.hpp"

namespace accord::comm {

/// The first step, in which ranks say who they are, or why they do not take part.
inline constexpr std::string_view kHello = "hello";

/// Agrees on size and options, learns where all ranks run, chooses the transport that reaches all of them, and
/// connects.
Result<std::shared_ptr<Group>> join(const JoinRequest& request, const Exchange& exchange);

/// The second half of join(), for ranks whose places are known; splits start here. Also fails with kMismatch if the
/// options differ. REQUIRES: check(request) is ok.
Result<std::shared_ptr<Group>> connect(const JoinRequest& request, topology::Topology topology,
                                       const Exchange& exchange);

/// Checks a request by itself, independent of the other ranks.
Status check(const JoinRequest& request);

/// Returns the settings that must be equal on all ranks, as text.
std::string terms(const JoinRequest& request);

/// Returns the text that a rank sends in its first exchange if it does not take part.
std::string refusal(const Status& why);

/// Notifies the ranks that wait in `store` for this one that it will not join, and why. Waits for them for at most
/// one second.
void decline(JoinRequest request, std::shared_ptr<Store> store, const Status& why);

}  // namespace accord::comm
