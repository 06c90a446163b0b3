#pragma once
// A real job, as a schedule of what its ranks did.

#include <vector>

#include "cli/diagnose/evidence.hpp"
#include "sim/schedule_builder.hpp"

namespace accord::cli {

struct RecordedJob {
  double seconds = 0;        ///< from the beginning of its first operation to the end of the last one
  std::size_t calls = 0;     ///< and messages, that all their ranks have recorded
  std::size_t left_out = 0;  ///< that only some of their ranks have recorded, or that never ended
  sim::Schedule schedule;
};

/// Rebuilds the job from the dumps of all its ranks: its communicators' calls and messages, and between them the time
/// that each rank needed for something else. Calls run at once if they did. Ranks of the job are those of its largest
/// communicator. Fails with kInvalidArgument if a rank has no dump, and with kUnsupported for calls that have no plan.
Result<RecordedJob> rebuild_job(const std::vector<GroupEvidence>& groups, const sim::Machine& machine,
                                const topology::Topology& topology, std::size_t slot_bytes);

/// Ranks of the job: those of its largest communicator.
int ranks_of_job(const std::vector<GroupEvidence>& groups);

}  // namespace accord::cli
