#pragma once
// The decisions that node 0 makes for all launchers of a job.

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "accord/status.hpp"
#include "cli/launch/job.hpp"
#include "cli/launch/messages.hpp"

namespace accord::cli {

/// States: Gathering -> Running -> Stopping -> Running (a restart) or Finished. Pure: messages in, messages out; no
/// I/O, no time.
class Coordinator {
 public:
  /// `host` hosts the stores for one start of the ranks, and records in it where they are.
  Coordinator(const Job& job, std::function<Status(Start&)> host);

  /// Admits a launcher. Returns the number of its node, or why it does not belong to this job. The last one starts
  /// the job. One that comes later takes the place of a lost one, if the job is elastic.
  Result<int> admit(const Hello& hello);
  /// Handles a message of an admitted launcher.
  void receive(int node, const Message& message);
  /// Handles the loss of the launcher of `node`, which is gone or cannot go on, for `reason`.
  void lose(int node, const std::string& reason);

  /// Returns the messages to send, with their nodes, oldest first.
  std::vector<std::pair<int, Message>> pop_outgoing() { return std::exchange(outgoing_, {}); }
  /// Describes the nodes that have not arrived: how many and, if launchers were given their node rank, which, as in
  /// "2 of 4 launchers (--node-rank 2, 3)".
  std::string missing() const;
  /// Number of nodes that have arrived.
  int arrived() const { return static_cast<int>(nodes_.size()); }
  bool gathering() const { return state_ == State::kGathering; }
  bool running() const { return state_ == State::kRunning; }

 private:
  enum class State { kGathering, kRunning, kStopping, kFinished };
  struct Node {
    int ranks = 0;
    int first_rank = 0;
    bool ended = false;  ///< all its ranks of this generation are gone
    bool lost = false;
  };

  void start_generation();
  Result<int> replace(const Hello& hello);
  void stop(const Failure& failure, int signal, bool restart);
  void finish_if_all_ended();
  void broadcast(const Message& message);
  /// Returns true if the nodes that are left have enough ranks for an elastic job.
  bool can_go_on() const;

  const Job job_;
  const std::function<Status(Start&)> host_;
  State state_ = State::kGathering;
  int generation_ = 0;
  std::map<int, Node> nodes_;
  Start start_;               ///< of this generation; `node` and `first_rank` differ
  std::optional<Stop> stop_;  ///< why this generation ends
  std::vector<std::pair<int, Message>> outgoing_;
};

}  // namespace accord::cli
