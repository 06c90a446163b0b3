#pragma once
// The members of a group, and how its ranks reach each other.

#include <cstdint>
#include <memory>
#include <vector>

#include "exec/window_layout.hpp"
#include "plan/selector.hpp"
#include "topology/topology.hpp"
#include "transport/transport.hpp"

namespace accord::comm {

/// Everything that a group consists of, once its ranks are connected (bootstrap.hpp).
struct Membership {
  std::uint64_t id = 0;  ///< equal on all ranks, different from that of every other group
  Rank rank = 0;
  topology::Topology topology;
  plan::Selector selector;
  exec::WindowLayout layout;
  std::shared_ptr<transport::Transport> transport = {};  ///< of the endpoint
  std::unique_ptr<transport::Endpoint> endpoint;
  std::vector<std::unique_ptr<transport::Link>> links;  ///< by rank; null for this one
};

}  // namespace accord::comm
