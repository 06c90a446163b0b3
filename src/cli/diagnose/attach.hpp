#pragma once
// Inspects running or stopped processes without their help, by their flight records. The records are in memory that
// other processes of the same user may read.

#include <vector>

#include "cli/diagnose/evidence.hpp"

namespace accord::cli {

/// Returns the flight logs of `process`; empty if it has no communicator. Fails with kNotFound if there is no such
/// process, and with kIo if this user may not inspect it.
Result<std::vector<FlightLog>> logs_of_process(int process);

/// Collects the evidence about the job of `processes`, each of which is a rank, or a process that started ranks (a
/// launcher). Their peers on this host are found through them. Fails with kNotFound if one of them has no
/// communicator and has started no process that has one.
Result<std::vector<GroupEvidence>> attach(const std::vector<int>& processes);
/// The same for those of the processes that have communicators.
std::vector<GroupEvidence> attach_if_possible(const std::vector<int>& processes);

}  // namespace accord::cli
