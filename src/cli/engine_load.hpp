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

/// What a command is told of how to load, by the names of the interfaces in C++ and Python.
struct LoadChoice {
  std::string group;
  int pp = 1;
  int dp = 1;
  std::string device = "cpu";  ///< "cuda": rank r on the r-th GPU of its host; "cuda:0"
  int threads = 0;
  int canonical_ranks = 0;
  int overlap_rows = 0;
  std::string all_reduce_dtype;  ///< "int8"; empty: exact sums
  std::string activation_dtype;  ///< "int8" or "fp8"; empty: as they are
  std::string memory_limit;      ///< "2GiB"; empty: none
};

void add_load_options(CLI::App& command, LoadChoice& load);
/// Those among them that say in which dtype sums travel and rows are multiplied.
void add_dtype_options(CLI::App& command, std::string& all_reduce_dtype, std::string& activation_dtype);
Result<LoadOptions> load_options(const LoadChoice& load);

/// What a number of ranks are to the package.
struct GroupChoice {
  std::vector<std::pair<std::string, int>>
      groups;                    ///< sizes by name; ranks beside each other are together in the first
  int alone = 1;                 ///< so many ranks each run what one could: the package has no group
  std::string identity;          ///< the package's SHA-256, if it was opened
  std::uint64_t bytes_read = 0;  ///< to find that out
};

/// Stages and replicas that were asked for, and of the ranks of each the group that was asked for or the package's only one. A
/// package that cannot be opened is left to load_on_ranks(), where all ranks learn of it.
Result<GroupChoice> choose_groups(const std::string& package, const LoadChoice& load, int ranks);

/// The places of one rank.
std::map<std::string, GroupPlace> places_of(const GroupChoice& choice, Rank rank);
/// The communicators of these places, among the ranks of `all`. Collective.
Result<std::map<std::string, Communicator>> communicators_of(const GroupChoice& choice, const Communicator& all);

/// Loads and binds. Ranks that form no group of the package agree on it all the same: none runs unless all can.
Result<Engine> load_on_ranks(const std::string& package, const Communicator& all, const GroupChoice& choice,
                             const LoadChoice& load);

}  // namespace accord::cli
