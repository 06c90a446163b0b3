#pragma once
// The state of a group and its first failure, which all ranks come to know.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accord/communicator.hpp"
#include "comm/membership/membership.hpp"
#include "flight/dump.hpp"
#include "flight/recorder.hpp"

namespace accord::comm {

/// States: Ready -> Failed, Ready -> Closed, Failed -> Closed. The first failure is kept, reported to all peers, and
/// returned by every pending and later call. Thread-safe.
class GroupState {
 public:
  /// `members`, `name` and `recorder` outlive the object.
  GroupState(const Membership& members, const std::string& name, flight::Recorder& recorder);

  CommunicatorState value() const { return value_.load(std::memory_order_acquire); }
  /// The first failure; kClosed once the group was closed without one; ok before.
  Status status() const;
  /// True once the group has failed, also after it was closed.
  bool has_failed() const;
  /// False if an operation has to end: the group failed or closed, or a peer rang the alarm. Costs two loads. close()
  /// relies on the order of the state and a channel's works; the order of the alarm makes its notice visible.
  bool healthy() const {
    return value_.load(std::memory_order_seq_cst) == CommunicatorState::kReady &&
           alarm_word_.load(std::memory_order_acquire) == 0;
  }
  /// Ok while nothing has failed; else as examine_alarm(). For operations that close() does not wait for. Cost: a
  /// lock.
  Status check(std::string_view context);
  /// Returns why healthy() is false, with `context`; adopts failures that peers reported. Never ok.
  Status examine_alarm(std::string_view context);
  /// Makes `failure` the group's failure if it is the first one, and notifies the peers. Returns the first failure. A
  /// failure that a peer reported before counts as first: the peer rings the alarm before it leaves, and its leaving
  /// is often the failure seen here. Returns once the failure has been dumped, if dumps are enabled.
  Status fail(const Status& failure);
  /// Dumps again, after the recorder has got something that the dump of an earlier failure lacks: the call that this
  /// rank would have made.
  void dump_again();
  /// Returns false if the group was closed before.
  bool close();

  transport::PeerState peer(Rank rank) const { return members_.links[rank]->peer_state(); }
  /// Ranks that have died or closed, in the order in which this rank learned of it. REQUIRES: the windows are open.
  std::vector<Rank> gone();
  /// Called by the progress thread only: a link's liveness descriptor became readable.
  void on_peer_change(Rank peer);

 private:
  /// Adds it to gone_, once. REQUIRES: mutex_ is held.
  void note_gone(Rank rank);
  /// fail() without waiting for the dump.
  Status note_failure(const Status& failure);
  /// REQUIRES: mutex_ is held, and `failure` is the first one.
  void set_failure(const Status& failure);
  /// REQUIRES: mutex_ is held, so that no call ends before the peers know.
  void notify_peers(const Status& failure, std::uint64_t source);
  /// Makes a failure that a peer reported the group's failure, if it has none yet, and passes it on. REQUIRES: mutex_
  /// is held.
  void adopt_notice();
  std::optional<Status> read_notices() const;

  const Membership& members_;
  const std::string& name_;
  flight::Recorder& recorder_;
  std::atomic_ref<std::uint64_t> alarm_word_;
  std::atomic<CommunicatorState> value_ = CommunicatorState::kReady;
  mutable std::mutex mutex_;
  Status first_failure_;    ///< guarded by mutex_
  std::vector<Rank> gone_;  ///< guarded by mutex_; may lack ranks that closed
  flight::FailureDump dump_;
};

}  // namespace accord::comm
