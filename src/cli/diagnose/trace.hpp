#pragma once
// Flight logs as a trace that ui.perfetto.dev and chrome://tracing open.

#include <string>
#include <vector>

#include "cli/diagnose/evidence.hpp"

namespace accord::cli {

/// Chrome's JSON trace events: a process for each process, in it a track for each order of operations of each communicator, and on
/// it a slice for each operation that began. Times of one host are on one clock; hosts are brought together by their wall clocks.
std::string to_trace(const std::vector<GroupEvidence>& groups);

}  // namespace accord::cli
