#pragma once
// Chooses the transport that connects the ranks of a group.

#include <memory>
#include <string>

#include "accord/status.hpp"
#include "comm/group_options.hpp"
#include "topology/topology.hpp"
#include "transport/transport.hpp"

namespace accord::comm {

struct Fabric {
  std::shared_ptr<transport::Transport> transport;
  bool maps = true;  ///< false: no two ranks share memory
};

/// Chooses the first transport that connects every pair of ranks, or one inside hosts and one between them if hosts
/// have several ranks. Pure, with the same result on all ranks.
Result<Fabric> choose_transport(const topology::Topology& topology, const GroupOptions& options);

/// `creating group "tp"`.
std::string in_group(const GroupOptions& options);

}  // namespace accord::comm
