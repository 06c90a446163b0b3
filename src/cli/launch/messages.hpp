#pragma once
// The messages between launchers: one JSON object per line. docs/launcher.md describes the exchange.

#include <string>
#include <string_view>
#include <variant>

#include "accord/status.hpp"

namespace accord::cli {

/// The first failure in one start of the job.
struct Failure {
  int node = 0;
  Rank rank = -1;  ///< -1: the node's launcher itself
  int process = 0;
  std::string host;
  int exit_code = 1;
  int signal = 0;      ///< signal that killed the rank; 0: it exited
  std::string reason;  ///< if no rank can be blamed: it could not be started, or the launcher is gone
};

/// For example "rank 3 (node 1, host "b", process 4711) was killed by SIGKILL".
std::string to_string(const Failure& failure);
/// Exit code of a launcher after this failure.
int exit_code_of(const Failure& failure);
/// "SIGTERM", or "signal 40" for a signal without a name.
std::string signal_name(int signal);

// Sent to node 0.
struct Hello {  ///< a launcher arrives
  std::string version;
  std::string run_id;
  int nodes = 1;
  int node = -1;  ///< -1: any
  int ranks = 1;
  std::string elastic = {};  ///< MIN:MAX; empty: it does not go on without ranks
};
struct Failed {  ///< one of its ranks failed; it is ending the others
  int generation = 0;
  Failure failure;
};
struct Ended {  ///< all its ranks are gone
  int generation = 0;
};
struct Interrupted {  ///< a signal told it to end
  int signal = 0;
};

// Sent by node 0.
struct Start {  ///< start your ranks
  int generation = 0;
  int node = 0;
  int first_rank = 0;
  int world_size = 1;
  std::string master_host;
  int master_port = 0;
  /// True: the launcher of node 0 serves PyTorch's store at the master port. False: rank 0 has to.
  bool hosts_torch_store = true;
  /// The job whose store accord's ranks find at a port after it; empty: there is none yet.
  std::string job_store;
};
struct Stop {  ///< end your ranks: after a failure, or a signal to some launcher
  int generation = 0;
  int signal = 0;
  Failure failure;
  bool restart = false;  ///< a Start follows when all have ended
};
struct Finish {  ///< exit
  int exit_code = 0;
};
struct Refuse {  ///< you do not belong to this job
  std::string reason;
};

using Message = std::variant<Hello, Failed, Ended, Interrupted, Start, Stop, Finish, Refuse>;

/// Returns the message as one line of JSON, with its newline.
std::string to_line(const Message& message);
/// Fails with kCorrupt, which says what is wrong.
Result<Message> from_line(std::string_view line);

}  // namespace accord::cli
