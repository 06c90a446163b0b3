#pragma once
// The ranks of this node: started together, ended together.

#include <cstdint>
#include <optional>
#include <vector>

#include "accord/status.hpp"
#include "base/clock.hpp"
#include "cli/launch/console.hpp"
#include "cli/launch/job.hpp"
#include "cli/launch/messages.hpp"
#include "cli/launch/rank_process.hpp"
#include "cli/launch/watch.hpp"

namespace accord::cli {

/// States: Idle -> Running -> Ending (told to end, within the grace period) -> Killed -> Draining (all ranks and
/// their helpers are gone; their output is read to its end) -> Idle. Running may also change to Draining directly.
/// Not thread-safe.
class LocalRanks {
 public:
  LocalRanks(const Job& job, Console& console) : job_(job), console_(console) {}

  /// Starts the ranks of one generation. If one cannot be started, failure() says so and the ranks already started
  /// are being ended.
  void start(const Start& start);
  bool idle() const { return state_ == State::kIdle; }
  /// The first rank of this generation that failed without having been told to end.
  const std::optional<Failure>& failure() const { return failure_; }

  /// Passes `signal` on, and kills the ranks that are left when the grace period is over.
  void end(int signal);
  /// Kills all ranks at once.
  void kill();
  /// Passes `signal` on and changes nothing else.
  void pass_on(int signal) const;

  void add_watches(Watches& watches);
  /// Checks for exits and deadlines, and changes state accordingly. To be called after each turn of the loop.
  void advance();
  /// When advance() is due even if nothing happens.
  Deadline next_check() const { return deadline_; }

 private:
  enum class State : std::uint8_t { kIdle, kRunning, kEnding, kKilled, kDraining };

  /// `restart`: how often this rank was started before.
  Result<RankProcess> start_rank(int local_rank, int restart);
  void fail_to_start(int local_rank, const Status& why);
  void notice_exits();
  Failure failure_of(std::size_t local_rank) const;
  /// Returns true if the job can go on when the rank is started again, or without it.
  bool can_go_on(std::size_t local_rank);
  /// Starts the ranks again that are to be, and whose helpers have ended.
  void start_again();
  /// Writes the flight records of the ranks that still run to ACCORD_DUMP_DIR, if it is set.
  void dump() const;
  void drain();

  const Job& job_;
  Console& console_;
  State state_ = State::kIdle;
  Start start_;
  std::vector<std::vector<int>> processors_;  ///< by local rank
  std::vector<RankProcess> ranks_;
  // For a job whose ranks change.
  std::vector<int> starts_;          ///< by local rank
  std::vector<bool> is_awaited_;     ///< by local rank: it failed and is to be started again
  std::vector<RankProcess> former_;  ///< whose output is still read
  bool is_finishing_ = false;        ///< a rank has ended without a failure
  std::optional<Failure> failure_;
  Deadline deadline_ = Deadline::never();
};

}  // namespace accord::cli
