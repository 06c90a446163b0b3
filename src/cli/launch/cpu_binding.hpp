#pragma once
// Which processors each rank of a node may use.

#include <span>
#include <vector>

#include "accord/status.hpp"
#include "cli/launch/job.hpp"

namespace accord::cli {

/// Where a processor (OS number) is.
struct ProcessorPlace {
  int cpu = 0;
  int core = 0;  ///< any number that its neighbours on the core have, too
  int numa_node = 0;
};

/// For each of `ranks` local ranks the processors (OS numbers) it may use; an empty list where it is not bound.
///
/// kCore divides the cores: neighbouring ranks get neighbouring cores, and with more ranks than cores they share. kNuma gives
/// a rank every processor of one memory node.
Result<std::vector<std::vector<int>>> processors_of_ranks(Binding binding, int ranks);
/// The same on a machine of these processors. Pure. REQUIRES: `machine` is not empty.
std::vector<std::vector<int>> processors_of_ranks(Binding binding, int ranks, std::span<const ProcessorPlace> machine);

}  // namespace accord::cli
