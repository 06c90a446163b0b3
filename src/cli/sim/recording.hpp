#pragma once
// A simulation with its journal, as documents to look at.

#include <string>
#include <vector>

#include "accord/status.hpp"
#include "sim/critical_path.hpp"
#include "sim/simulate.hpp"

namespace accord::cli {

struct SimRecording {
  std::string title;
  std::vector<sim::Task> tasks;     ///< of the schedule
  std::vector<std::string> labels;  ///< of the tasks
  sim::Times times;
  double simulated_in = 0;  ///< seconds that the simulation took
  sim::Journal journal;
  sim::CriticalPath path;
};

/// Where the time of the critical path goes, by the label of the task that an operation belongs to: its own time, and
/// what it waited.
std::vector<std::pair<std::string, double>> path_by_label(const SimRecording& recording);

/// Chrome's JSON trace events (ui.perfetto.dev): a process for each rank with a track for each lane, arrows from what
/// others waited for, and the use of each link over time. Fails with kUnsupported if there are more operations than
/// viewers show.
Result<std::string> sim_trace(const SimRecording& recording);

/// An SVG document: what each rank does over time, the critical path across them, and the use of links over time. Of
/// many ranks or links, some are shown.
std::string sim_timeline(const SimRecording& recording);

}  // namespace accord::cli
