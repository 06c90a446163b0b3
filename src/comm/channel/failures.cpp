// Finds out why an operation has to end, if it does. Called once a wait is slow, or after an unexpected word.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/text.hpp"
#include "comm/channel/channel.hpp"
#include "comm/group.hpp"
#include "comm/mismatch.hpp"

namespace accord::comm {

std::optional<Status> Channel::conclude(const Status& failure) {
  // A peer that left or died may have done its part before: data that has arrived counts.
  const exec::Cursor& cursor = runner_.cursor();
  const std::uint64_t position = cursor.position();
  const int waited_for = cursor.waiting_for();
  if (poll() == exec::Progress::kDone) return Status();
  const bool moved = cursor.position() != position || (!waits_for_record() && cursor.waiting_for() != waited_for);
  if (moved && group_.state().healthy()) return std::nullopt;
  return group_.state().fail(failure);
}

Status Channel::examine(exec::Progress progress, const exec::RequestRecord& record, Deadline deadline) {
  const exec::Cursor& cursor = runner_.cursor();
  exec::Domain& domain = runner_.domain();
  const Rank waited_for = rank_waited_for();
  const auto where = [&] { return runner_.where(record); };  // only for errors: this runs at each slow poll
  runner_.note_long_wait(waited_for);
  domain.flush_notes();
  const Clock::time_point now = Clock::now();
  if (!waits_for_record() && !cursor.at_gate()) domain.publish_waiting(cursor.waiting_for(), now);
  if (!group_.state().healthy()) return group_.state().examine_alarm(where());
  if (progress == exec::Progress::kMismatch && cursor.read_error() != 0)
    return unreadable(where(), waited_for, cursor.read_error());
  if (progress == exec::Progress::kMismatch && cursor.unknown_window() >= 0)
    return lost_window(where(), runner_.me(), waited_for, cursor.unknown_window());
  // A peer that waits at a gate for this rank sees there which call this rank made instead.
  const bool between_rounds = waits_for_record() || cursor.at_gate() || domain.round() == 0;
  domain.publish_completed(domain.round() - (between_rounds ? 0 : 1));
  ACCORD_RETURN_IF_ERROR(runner_.find_mismatch());
  if (progress == exec::Progress::kMismatch) return mismatch_long_ago(where(), runner_.me(), waited_for);
  if (waited_for >= 0 && group_.state().peer(waited_for) == transport::PeerState::kLeft)
    return Status(
        StatusCode::kPeerLost,
        fmt::format("{}: rank {} has closed its communicator and takes part in no further calls", where(), waited_for),
        {waited_for});
  if (deadline.at() <= now) return timed_out(where());
  const OperationQueue::Lock lock(queue_);
  for (const auto& [work, number] : lock.operations()) {
    if (work->deadline().at() > now) continue;
    const std::string late = runner_.where(work->operation().record);
    if (direction_ == Direction::kReceive) return timed_out(late);
    const bool sends = direction_ == Direction::kSend;
    return timed_out(
        fmt::format("{}, queued behind {}", late, sends ? exec::to_string(record, "send") : exec::to_string(record)));
  }
  return {};
}

Status Channel::timed_out(std::string_view what) const {
  const std::vector<Rank> missing = waits_for_record() ? std::vector<Rank>{runner_.rank_of(0)} : runner_.late_ranks();
  const std::string tags = matcher_ ? matcher_->kept_tags() : "";
  const std::string kept = tags.empty() ? "" : fmt::format(" (it has sent messages with tags {})", tags);
  return Status(StatusCode::kTimeout,
                fmt::format("{}: {} did not arrive in time{}; raise the timeout if it is only slow", what,
                            ranks_text(missing), kept),
                missing);
}

Rank Channel::rank_waited_for() const {
  const int member = waits_for_record() ? 0 : runner_.cursor().waiting_for();
  return member < 0 ? -1 : runner_.rank_of(member);
}

}  // namespace accord::comm
