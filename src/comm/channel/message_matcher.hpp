#pragma once
// Matches the messages that arrive from one rank with the receives that ask for them by their tags.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/channel/kept_messages.hpp"
#include "comm/channel/operation_queue.hpp"
#include "comm/channel/operation_runner.hpp"
#include "flight/recorder.hpp"

namespace accord::comm {

/// Whether a message with a tag has arrived. kPerhaps: other messages arrived before it, or another operation is
/// receiving.
enum class Arrival : std::uint8_t { kNo, kPerhaps, kYes };

/// Used by the owner of a channel that receives, except where a lock of the queue is passed.
class MessageMatcher {
 public:
  /// Both outlive the matcher.
  MessageMatcher(OperationRunner& runner, OperationQueue& queue) : runner_(runner), queue_(queue) {}

  /// Starts the receive that the runner has accepted.
  Status begin();
  /// Continues it.
  exec::Progress poll(exec::PollLimits limits);
  /// Returns whether the message of a receive that does not run is kept or is next. Other messages that arrive are
  /// kept.
  Arrival find_message(const Operation& receive);
  /// Whether a message with that tag is kept that neither the running nor a queued receive takes.
  bool has_spare(const OperationQueue::Lock& lock, Rank tag) const;

  /// Returns receives that ended before their turn, whose waiters are to be notified.
  std::vector<std::shared_ptr<PendingWork>> take_early() { return std::exchange(early_, {}); }
  /// True while the running receive waits for its sender's record of the next message.
  bool waits_for_record() const { return runner_.stage() == Stage::kMessage && !side_message_; }
  /// The tags of kept messages; empty if there are none.
  std::string kept_tags() const { return kept_.tags_text(); }

 private:
  /// A message in progress that is not the running operation's.
  struct SideMessage {
    KeptMessage message;
    QueuedOperation receive;         ///< the receive that it is for; empty if the message is to be kept
    flight::OrderRecorder recorder;  ///< of that receive
  };

  /// Looks whether another message is next than the one that the receive expects.
  exec::Progress check_expected(exec::Progress progress);
  /// Continues a receive that waits until its message is next.
  exec::Progress receive(exec::PollLimits limits);
  /// Returns false if the sender has not announced the message after this round.
  bool read_next(exec::RequestRecord& next);
  void wait_for_record();
  /// The first receive with that tag in the queue, except the running operation; empty if there is none.
  QueuedOperation find_receive(Rank tag);
  /// `receive`: the receive that the message is for; empty if the message is to be kept.
  Status begin_side_message(const exec::RequestRecord& record, QueuedOperation receive);
  /// Returns kDone once that message is where it belongs.
  exec::Progress continue_side_message(exec::PollLimits limits);
  std::optional<KeptMessage> take_kept(Rank tag);
  /// Gives kept messages to the receives in the queue that wait for them.
  Status deliver_kept();
  /// Fails with kMismatch if a message is not what its receive expects.
  Status check_fits(const exec::RequestRecord& message, const Operation& receive) const;
  Status deliver(const KeptMessage& message, const Operation& receive) const;
  /// Ends a receive in the queue before its turn.
  void end_early(const QueuedOperation& receive);

  OperationRunner& runner_;
  OperationQueue& queue_;
  std::atomic<Rank> running_tag_ = 0;  ///< of the receive that runs or ran last
  std::uint32_t expected_polls_ = 0;   ///< of the receive in kExpected
  std::uint64_t round_before_ = 0;     ///< the domain's round before the receive
  std::uint32_t history_before_ = 0;
  std::optional<SideMessage> side_message_;
  KeptMessages kept_;  ///< changed with the queue locked, so that other threads may look while they hold the lock
  std::vector<std::shared_ptr<PendingWork>> early_;  ///< receives that ended early, not yet announced
  bool has_new_kept_ = false;                        ///< since kept messages were last given to the queue
  std::uint64_t pushed_at_delivery_ = 0;             ///< the queue's pushed() at that time
};

}  // namespace accord::comm
