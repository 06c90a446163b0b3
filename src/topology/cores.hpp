#pragma once
// Maps processors to the physical cores and memory nodes that they belong to.

#include <vector>

#include "accord/status.hpp"

namespace accord::topology {

struct Cores {
  int cores = 0;                ///< physical cores; the number of processors if unknown
  std::vector<int> core_ids;    ///< each core's lowest processor on the machine, ascending; empty if unknown
  std::vector<int> numa_nodes;  ///< ascending, at least one
};

/// Returns the cores and memory nodes of `cpus` (OS numbers, ascending, not empty).
Result<Cores> cores_of(const std::vector<int>& cpus);

}  // namespace accord::topology
