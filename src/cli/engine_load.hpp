#pragma once
// How a command loads a package on the ranks of its job.

#include <cstdint>
#include <optional>
#include <string>

#include "accord/communicator.hpp"
#include "accord/engine.hpp"

namespace accord::cli {

/// What the job's ranks are to the package.
struct GroupChoice {
  std::optional<std::string> name;  ///< the group that they form; none if each of them runs all of the package
  std::string identity;             ///< the package's SHA-256
  std::uint64_t bytes_read = 0;     ///< to find that out
};

/// The group that was asked for, or the package's only one. A package that cannot be opened is left to load_on_ranks(), where all
/// ranks learn of it.
Result<GroupChoice> choose_group(const std::string& package, const std::string& wanted, const Communicator& comm);

/// Loads and binds. Ranks that form no group of the package agree on it all the same: none runs unless all can.
Result<Engine> load_on_ranks(const std::string& package, const Communicator& comm, const GroupChoice& group,
                             int threads);

}  // namespace accord::cli
