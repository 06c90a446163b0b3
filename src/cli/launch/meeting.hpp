#pragma once
// How the launchers of several nodes find each other.

#include <functional>
#include <variant>

#include "accord/status.hpp"
#include "base/fd.hpp"
#include "cli/launch/job.hpp"
#include "cli/launch/link.hpp"

namespace accord::cli {

/// This launcher serves the endpoint: it is node 0.
struct Served {
  UniqueFd listening;
};

/// Or it is another node, connected to node 0.
using Met = std::variant<Served, Link>;

/// Serves the job's endpoint or connects to it, trying until `deadline`. Without a --node-rank, a launcher on the
/// endpoint's machine that finds no server there becomes the server. `should_stop` is called several times a second;
/// fails with kAborted if it returns true.
Result<Met> meet(const Job& job, Deadline deadline, const std::function<bool()>& should_stop);

}  // namespace accord::cli
