#pragma once
// The part of a group that never changes.

#include <memory>

#include "accord/expert_parallel.hpp"
#include "expert/placement.hpp"

namespace accord::expert {

struct GroupSetup {
  Communicator communicator;  ///< the group's own
  ExpertGroupConfig config;   ///< with all defaults filled in
  std::shared_ptr<const Placement> placement;

  Rank rank() const { return communicator.rank(); }
  int size() const { return communicator.size(); }
};

}  // namespace accord::expert
