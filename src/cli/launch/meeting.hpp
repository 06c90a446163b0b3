#pragma once
// How launchers of several nodes find each other.

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

/// Serves the job's endpoint or connects to it, trying until `deadline`. Without a --node-rank whoever is on the endpoint's
/// machine and finds nobody there serves it. `give_up` is asked several times a second; kAborted if it says so.
Result<Met> meet(const Job& job, Deadline deadline, const std::function<bool()>& give_up);

}  // namespace accord::cli
