#pragma once
// From processors to the physical cores and memory nodes that they belong to.

#include <vector>

#include "accord/status.hpp"

namespace accord::topology {

struct Cores {
  int cores = 0;              ///< physical cores; where they are not known, as many as processors
  std::vector<int> core_ids;  ///< each by the lowest processor of the machine's core, ascending; empty where not known
  std::vector<int> numa_nodes;  ///< ascending, at least one
};

/// What `cpus` (OS numbers, ascending, not empty) are made of.
Result<Cores> cores_of(const std::vector<int>& cpus);

}  // namespace accord::topology
