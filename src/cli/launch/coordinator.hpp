#pragma once
// What node 0 decides for all launchers of a job.

#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "accord/status.hpp"
#include "cli/launch/job.hpp"
#include "cli/launch/messages.hpp"

namespace accord::cli {

/// Gathering -> Running -> Stopping -> Running (a restart) or Finished. Pure: messages in, messages out; no I/O, no time.
class Coordinator {
 public:
  /// `host` hosts the stores of a start of the ranks and writes into it where they are.
  Coordinator(const Job& job, std::function<Status(Start&)> host);

  /// A launcher comes: the number of its node, or why it is no part of this job. The last one starts the job.
  Result<int> admit(const Hello& hello);
  /// A message of an admitted launcher.
  void receive(int node, const Message& message);
  /// The launcher of `node` is gone, or cannot go on, for `reason`.
  void lose(int node, const std::string& reason);

  /// Messages to be sent, with their node, oldest first.
  std::vector<std::pair<int, Message>> take_outgoing() { return std::exchange(outgoing_, {}); }
  /// Nodes that have not come yet: their number and, if launchers were told theirs, "nodes 2 and 3".
  std::string missing() const;
  /// Nodes that have come.
  int arrived() const { return static_cast<int>(nodes_.size()); }
  bool gathering() const { return state_ == State::kGathering; }

 private:
  enum class State { kGathering, kRunning, kStopping, kFinished };
  struct Node {
    int ranks = 0;
    bool ended = false;  ///< all its ranks of this generation are gone
    bool lost = false;
  };

  void start_generation();
  void stop(const Failure& failure, int signal, bool restart);
  void when_all_ended();
  void broadcast(const Message& message);

  const Job job_;
  const std::function<Status(Start&)> host_;
  State state_ = State::kGathering;
  int generation_ = 0;
  std::map<int, Node> nodes_;
  std::optional<Stop> stop_;  ///< why this generation ends
  std::vector<std::pair<int, Message>> outgoing_;
};

}  // namespace accord::cli
