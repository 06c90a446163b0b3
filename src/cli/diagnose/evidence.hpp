#pragma once
// What is known of a job: the flight logs of its ranks, and how their processes are.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accord/status.hpp"
#include "comm/flight/flight_log.hpp"

namespace accord::cli {

using comm::flight::FlightLog;

/// How the process of a rank is.
enum class Condition : std::uint8_t {
  kNotKnown,   ///< only its dump speaks, if there is one
  kRunning,    ///< also if it sleeps
  kStopped,    ///< by a signal (SIGSTOP, a terminal) or a debugger
  kGone,       ///< ended or killed
  kLeft,       ///< it lives, and has no such communicator (any more)
  kElsewhere,  ///< on another host than this command
  kHidden,     ///< it lives, and this user may not look into it
};
/// "stopped"; the word that the JSON has.
std::string_view to_string(Condition condition);

struct RankEvidence {
  std::optional<FlightLog> log;
  Condition condition = Condition::kNotKnown;
  int process = 0;
  int host = 0;  ///< its number within the communicator
};

/// One communicator.
struct GroupEvidence {
  std::string id;
  std::string name;
  std::vector<RankEvidence> ranks;  ///< by rank
};

/// Sorts logs by communicator; what is known of their other ranks is who they are.
std::vector<GroupEvidence> group_by_communicator(std::vector<FlightLog> logs);

/// Reads dumps: files, and all accord-*.json of directories. Errors name the file, and what is wrong with it.
Result<std::vector<FlightLog>> read_dumps(const std::vector<std::string>& paths);
/// Writes all logs to `directory`, as the ranks themselves do.
Status write_dumps(const std::vector<GroupEvidence>& groups, const std::string& directory);

}  // namespace accord::cli
