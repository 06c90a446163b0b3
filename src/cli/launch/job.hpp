#pragma once
// The job that `accord run` starts.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "accord/store.hpp"
#include "base/config.hpp"

namespace accord::cli {

/// Which processors a rank may use.
enum class Binding : std::uint8_t {
  kNone,  ///< those of the launcher
  kCore,  ///< its equal share of the launcher's cores
  kNuma,  ///< all cores of one memory node, ranks spread evenly over the nodes
};

/// One job as this launcher sees it. The launchers of all nodes get the same values, except for `node` and
/// `ranks_here`.
struct Job {
  std::vector<std::string> program;  ///< arguments of exec; the first is looked up in PATH
  int ranks_here = 1;
  int nodes = 1;
  std::optional<int> node;    ///< absent: whichever can serve the endpoint is node 0, the others as they arrive
  std::string endpoint_host;  ///< where launchers meet, served by node 0; unused with one node
  int endpoint_port = 0;
  std::string master_host;  ///< MASTER_ADDR
  int master_port = 0;      ///< MASTER_PORT; 0: a free port for each start
  int max_restarts = 0;     ///< of the whole job; with `elastic`, of single ranks of this node
  /// A rank that has failed is started again and joins the others, which go on without it.
  std::optional<RankRange> elastic;
  std::string run_id = "none";  ///< launchers of different jobs refuse each other
  std::string role = "default";
  std::string log_directory;  ///< empty: no files
  std::string route;          ///< ACCORD_ROUTE of the ranks; empty: the launcher's
  Binding binding = Binding::kNone;
  Duration grace = std::chrono::seconds(5);             ///< from SIGTERM to SIGKILL
  Duration meeting_timeout = std::chrono::minutes(10);  ///< for all launchers to arrive
};

/// "2:4"; empty if the job is not elastic.
inline std::string elastic_text(const Job& job) {
  return job.elastic ? std::to_string(job.elastic->least) + ":" + std::to_string(job.elastic->most) : "";
}

/// Runs the job to its end and returns the exit code of this launcher: 0, the code of the first failure (128 + its
/// signal if it was killed), or 128 + the signal that ended the launcher.
int launch(const Job& job);

}  // namespace accord::cli
