#pragma once
// The evidence about a job: the flight logs of its ranks, and the state of their processes.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accord/status.hpp"
#include "flight/flight_log.hpp"

namespace accord::cli {

using flight::FlightLog;

/// State of the process of a rank.
enum class Condition : std::uint8_t {
  kNotKnown,   ///< known only from its dump, if there is one
  kRunning,    ///< running or sleeping
  kStopped,    ///< by a signal (SIGSTOP, a terminal) or a debugger
  kGone,       ///< ended or killed
  kLeft,       ///< alive, but without this communicator (or no longer in it)
  kElsewhere,  ///< on another host than this command
  kHidden,     ///< alive, but this user may not inspect it
};
/// The word that the JSON has, such as "stopped".
std::string_view to_string(Condition condition);

struct RankEvidence {
  std::optional<FlightLog> log;
  Condition condition = Condition::kNotKnown;
  int process = 0;
  int host = 0;  ///< number of the host within the communicator
};

/// One communicator.
struct GroupEvidence {
  std::string id;
  std::string name;
  std::vector<RankEvidence> ranks;  ///< indexed by rank
};

/// Groups logs by communicator. Ranks without a log are known by process and host only.
std::vector<GroupEvidence> group_by_communicator(std::vector<FlightLog> logs);

/// Reads dumps: files, and all accord-*.json of directories. Errors name the file and the problem.
Result<std::vector<FlightLog>> read_dumps(const std::vector<std::string>& paths);
/// Writes all logs to `directory`, as the ranks themselves do.
Status write_dumps(const std::vector<GroupEvidence>& groups, const std::string& directory);

}  // namespace accord::cli
