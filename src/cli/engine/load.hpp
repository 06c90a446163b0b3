#pragma once
// How a command loads a package on the ranks of its job.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "accord/communicator.hpp"
#include "accord/engine.hpp"

namespace accord::cli {

/// Load options of a command, with the names of the C++ and Python interfaces.
struct LoadChoice {
  std::string group;
  int pp = 1;
  int dp = 1;
  int cp = 1;
  std::string device = "cpu";  ///< "cuda": rank r on the r-th GPU of its host; "cuda:0"
  int threads = 0;
  int canonical_ranks = 0;
  int overlap_rows = 0;
  std::string all_reduce_dtype;  ///< "int8"; empty: exact sums
  std::string activation_dtype;  ///< "int8" or "fp8"; empty: not rounded
  std::string memory_limit;      ///< "2GiB"; empty: no limit
};

void add_load_options(CLI::App& command, LoadChoice& load);
/// Adds only the options for the dtypes in which sums are sent and rows are multiplied.
void add_dtype_options(CLI::App& command, std::string& all_reduce_dtype, std::string& activation_dtype);
Result<LoadOptions> load_options(const LoadChoice& load);

/// How a number of ranks is divided into the groups of a package.
struct GroupChoice {
  std::vector<std::pair<std::string, int>> groups;  ///< sizes by name; consecutive ranks are together in the first
  int alone = 1;                                    ///< ranks that each run the whole package, if it has no group
  std::string identity;                             ///< the package's SHA-256, if it was opened
  std::uint64_t bytes_read = 0;                     ///< from the package, to find that out
};

/// Divides the ranks into the requested stages and replicas. The ranks of each replica form the requested group, or
/// the only group of the package. A package that cannot be opened is left to load_on_ranks(), where all ranks learn
/// of the error.
Result<GroupChoice> choose_groups(const std::string& package, const LoadChoice& load, int ranks);

/// Returns the places of one rank.
std::map<std::string, GroupPlace> places_of(const GroupChoice& choice, Rank rank);
/// Returns the communicators of this rank's places, among the ranks of `all`. Collective.
Result<std::map<std::string, Communicator>> communicators_of(const GroupChoice& choice, const Communicator& all);

/// Loads and binds the package. Ranks that form no group of the package agree on it nevertheless: none runs unless
/// all can.
Result<Engine> load_on_ranks(const std::string& package, const Communicator& all, const GroupChoice& choice,
                             const LoadChoice& load);

}  // namespace accord::cli
