#pragma once
// How the canonical tree over the ranks meets the hosts that they are on.

#include "topology/topology.hpp"

namespace accord::plan {

/// True if the canonical sum over all ranks is the canonical sum, over the hosts in their order, of each host's own canonical sum: the
/// ranks of a host follow each other, and the tree splits between hosts before it splits one.
bool hosts_are_subtrees(const topology::Topology& topology);

/// True if that holds, there are several hosts, and one of them has several ranks.
bool is_hierarchy(const topology::Topology& topology);

}  // namespace accord::plan
