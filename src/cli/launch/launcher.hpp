#pragma once
// One launcher: the ranks of its node, its part in the job, and its loop.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "cli/launch/console.hpp"
#include "cli/launch/coordinator.hpp"
#include "cli/launch/job.hpp"
#include "cli/launch/job_stores.hpp"
#include "cli/launch/link.hpp"
#include "cli/launch/local_ranks.hpp"
#include "cli/launch/watch.hpp"

namespace accord::cli {

/// Runs one job once. Everything happens on one thread, in one loop over poll(). The launcher of node 0 holds the
/// Coordinator and a link to each other launcher; each of those has one link, to node 0.
class Launcher {
 public:
  explicit Launcher(const Job& job);
  /// Returns the exit code.
  int run();

 private:
  struct Peer {
    Link link;
    int node = -1;  ///< -1 until its Hello arrives
  };

  Status meet_others();
  Status host_stores(Start& start);
  Hello hello() const;
  void turn();
  bool done() const;
  Deadline next_check() const;

  // Event handlers.
  void on_signal();
  void on_interrupt(int signal);
  void on_connection();
  void on_peer(Peer& peer);
  void on_head();
  void on_message(const Message& message);
  void on_start(const Start& start);
  void on_stop(const Stop& stop);
  void on_meeting_timeout();
  void on_head_gone();

  void report_ranks();
  void send_to_head(const Message& message);
  void deliver();
  void print_message(const std::string& text);

  const Job job_;
  Console console_;
  LocalRanks ranks_;
  UniqueFd signals_;
  Deadline meeting_deadline_;

  // On node 0.
  std::optional<Coordinator> coordinator_;
  std::optional<JobStores> stores_;  ///< of the last start
  UniqueFd listening_;
  std::vector<std::unique_ptr<Peer>> peers_;
  Deadline disconnect_deadline_ = Deadline::never();

  // On the other nodes.
  std::optional<Link> head_;

  std::optional<int> generation_;  ///< of the last Start or Stop
  bool failure_reported_ = false;  ///< of this generation
  bool end_reported_ = false;
  int interrupted_by_ = 0;
  std::optional<int> exit_code_;
};

}  // namespace accord::cli
