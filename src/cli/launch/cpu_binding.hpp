#pragma once
// Which processors each rank of a node may use.

#include <span>
#include <vector>

#include "accord/status.hpp"
#include "cli/launch/job.hpp"

namespace accord::cli {

/// The location of a processor (OS number).
struct ProcessorPlace {
  int cpu = 0;
  int core = 0;  ///< any number that all processors of the core have
  int numa_node = 0;
};

/// Returns for each of `ranks` local ranks the processors (OS numbers) it may use; an empty list if it is not bound.
///
/// kCore divides the cores: neighbouring ranks get neighbouring cores, and with more ranks than cores they share.
/// kNuma gives a rank every processor of one memory node.
Result<std::vector<std::vector<int>>> processors_of_ranks(Binding binding, int ranks);
/// The same on a machine with these processors. Pure. REQUIRES: `machine` is not empty.
std::vector<std::vector<int>> processors_of_ranks(Binding binding, int ranks, std::span<const ProcessorPlace> machine);

}  // namespace accord::cli
