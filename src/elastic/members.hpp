#pragma once
// How the processes of an elastic group agree on who is in its next group: through a store, and by watching each other.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "accord/elastic.hpp"
#include "base/clock.hpp"
#include "elastic/decision.hpp"
#include "elastic/life_line.hpp"
#include "elastic/records.hpp"
#include "elastic/rounds.hpp"

namespace accord::elastic {

/// kInvalidArgument if the numbers of ranks are impossible.
Status check(const ElasticOptions& options);

/// Sets the numbers of ranks in `options` from ACCORD_ELASTIC and returns the store of the job.
Result<std::shared_ptr<Store>> use_environment(ElasticOptions& options);

/// One process's part. Not thread-safe, but for close().
class Members {
 public:
  /// REQUIRES: `store` is not null.
  static Result<std::unique_ptr<Members>> open(std::shared_ptr<Store> store, const ElasticOptions& options);
  ~Members();
  Members(const Members&) = delete;
  Members& operator=(const Members&) = delete;

  /// Waits for a round in which this process takes part by `handle`, a new one at each call, and returns it; nullopt
  /// once the job is finished. `timeout`, as in ElasticOptions. Errors: as ElasticGroup::form().
  Result<std::optional<Round>> next_round(const std::string& handle, Duration timeout);
  /// The group of the newest round could not be formed because the ranks `late` did not come. They are left out until
  /// they ask again.
  void report(std::span<const Rank> late);
  /// This process does not come to the rounds that include it any more.
  void give_up();
  /// Returns true if a process waits that has a place. Cost: one request if nothing has changed.
  Result<bool> others_wait();
  Status finish();
  void close();
  bool is_closed() const { return is_closed_; }

  std::int64_t round() const { return latest().number; }
  const std::string& where() const { return store_.where(); }

 private:
  Members(std::shared_ptr<Store> store, const ElasticOptions& options, std::unique_ptr<LifeLine> line);
  Status enter();
  Status write(const MemberRecord& record);
  /// Withdraws this process, for good.
  void leave();
  void leave_if_closed();
  Result<std::optional<Round>> wait_for_round(const std::string& handle, Duration timeout);
  /// Waits for the next round, for a while.
  Status await_round();
  bool was_in_latest(std::int64_t id) const;
  /// Reads `changes`; returns whether it is another one than before.
  Result<bool> has_changed();
  Status read_news();
  Result<bool> is_finished();
  Situation situation();
  const std::optional<MemberRecord>& record(std::int64_t id);
  Presence presence(std::int64_t id);
  Life life(std::int64_t id);
  /// Called after a new round: returns true if this process is in it; otherwise makes the others ask it again.
  Result<bool> is_included();
  Status publish(const Decision& decision);
  const Round& latest() const { return rounds_.latest(); }
  void leave_out(std::int64_t id);
  /// Returns true if ranks of the latest round answer and do not wait.
  bool others_work();
  Status timed_out(const Decision& decision);
  Status unreachable() const;

  GroupStore store_;
  Rounds rounds_;
  const int min_ranks_;
  const int max_ranks_;
  const Duration last_call_;
  Duration timeout_ = Duration::zero();  ///< of the last call
  std::mutex running_;                   ///< held while a call waits for a round
  std::unique_ptr<LifeLine> line_;
  const std::string life_address_;
  const int process_;  ///< that opened it
  bool has_left_ = false;

  std::int64_t me_ = 0;
  std::int64_t ids_ = 0;
  std::int64_t changes_ = -1;
  MemberRecord own_;
  /// By process: empty until it is written. A record that cannot change until the next round is not read again.
  std::map<std::int64_t, std::optional<MemberRecord>> records_;
  std::map<std::int64_t, LifeWatch> watches_;
  std::map<std::int64_t, std::string> left_out_;  ///< records of those that did not come, until they write again
  bool others_wait_ = false;                      ///< the last answer
  bool is_undecided_ = false;                     ///< and whether another process may still answer
  std::atomic<bool> is_closed_ = false;
  Status error_;  ///< the first of a request in the midst of a decision
};

}  // namespace accord::elastic
