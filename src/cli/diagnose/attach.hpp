#pragma once
// Looks into processes that run, or are stopped, without their help: at their flight records, which lie in memory that
// another process of the same user may read.

#include <vector>

#include "cli/diagnose/evidence.hpp"

namespace accord::cli {

/// The flight logs of `process`. kNotFound if there is no such process, kIo if this user may not look into it; empty if it
/// has no communicator.
Result<std::vector<FlightLog>> logs_of_process(int process);

/// What is known of the job of `processes`: each a rank, or a process that started ranks (a launcher). Their peers on this host are
/// found from them. kNotFound if one has no communicator and has started none that has.
Result<std::vector<GroupEvidence>> attach(const std::vector<int>& processes);
/// The same of those processes that have communicators.
std::vector<GroupEvidence> look_at(const std::vector<int>& processes);

}  // namespace accord::cli
