#pragma once
// Which transport connects the ranks of a group.

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

/// Pure and equal on all ranks: the first transport that connects every pair, but two of them where hosts have several ranks.
Result<Fabric> choose_transport(const topology::Topology& topology, const GroupOptions& options);

/// `creating group "tp"`.
std::string in_group(const GroupOptions& options);

}  // namespace accord::comm
