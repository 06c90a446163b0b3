#pragma once
// Passes file descriptors between the ranks of a group.

#include <vector>

#include "accord/status.hpp"
#include "base/clock.hpp"
#include "base/fd.hpp"

namespace accord::comm {

class Group;

/// A collective of the group, whose ranks share a host. Returns copies of the descriptors of the other ranks, by rank;
/// invalid for this rank and for those that offer none. `mine`: offered to all others if it is valid. A failure is
/// that of one rank; ranks that others wait for in vain report a timeout after 10 seconds.
Result<std::vector<UniqueFd>> exchange_descriptors(Group& group, const UniqueFd& mine, Deadline deadline);

}  // namespace accord::comm
