#pragma once
// Flight logs as a trace for ui.perfetto.dev and chrome://tracing.

#include <string>
#include <vector>

#include "cli/diagnose/evidence.hpp"

namespace accord::cli {

/// Chrome's JSON trace events. A process has one track for each order of operations of each communicator, and a slice
/// for each operation that began. Times of one host are on one clock; hosts are aligned by their wall clocks.
std::string to_trace(const std::vector<GroupEvidence>& groups);

}  // namespace accord::cli
