#pragma once
// The environment of a rank.

#include <map>
#include <string>
#include <vector>

#include "cli/launch/job.hpp"
#include "cli/launch/messages.hpp"

namespace accord::cli {

/// Returns the variables that tell local rank `local_rank` its place in the job.
std::map<std::string, std::string> rank_variables(const Job& job, const Start& start, int local_rank);

/// Returns the launcher's environment as "NAME=value", with rank_variables() of local rank `local_rank` set in it.
/// `cores`: cores of each rank of this node, which become OMP_NUM_THREADS unless the user has set that.
std::vector<std::string> rank_environment(const Job& job, const Start& start, int local_rank, int cores);

}  // namespace accord::cli
