#pragma once
// Which processors each rank of a node may use.

#include <vector>

#include "accord/status.hpp"
#include "cli/launch/job.hpp"

namespace accord::cli {

/// For each of `ranks` local ranks the processors (OS numbers) it may use; an empty list where it is not bound.
///
/// kCore divides the cores: neighbouring ranks get neighbouring cores, and with more ranks than cores they share. kNuma gives
/// a rank every processor of one memory node.
Result<std::vector<std::vector<int>>> processors_of_ranks(Binding binding, int ranks);

}  // namespace accord::cli
