// Finds out why an operation has to end, if it does. Called once a wait is slow, or after an unexpected word.
#include <fmt/format.h>

#include <optional>
#include <set>
#include <utility>

#include "base/text.hpp"
#include "comm/channel.hpp"
#include "comm/group.hpp"
#include "comm/mismatch.hpp"

namespace accord::comm {

std::optional<Status> Channel::conclude(const Status& failure) {
  // A peer that left or died may have done its part before: data that has arrived counts.
  const std::uint64_t position = cursor_.position();
  const int waited_for = cursor_.waiting_for();
  if (poll() == exec::Progress::kDone) return Status();
  const bool moved = cursor_.position() != position || (!waits_for_message() && cursor_.waiting_for() != waited_for);
  if (moved && group_.healthy()) return std::nullopt;
  return group_.fail(failure);
}

Status Channel::examine(exec::Progress progress, const exec::RequestRecord& record, Deadline deadline) {
  const Rank waited_for = rank_waited_for();
  recorder_.waiting_long(waited_for, !std::exchange(waited_long_, true));
  domain_.flush_notes();
  const Clock::time_point now = Clock::now();
  if (!waits_for_message() && !cursor_.at_gate()) domain_.publish_waiting(cursor_.waiting_for(), now);
  if (!group_.healthy()) return group_.examine_alarm(where(record));
  if (progress == exec::Progress::kMismatch && cursor_.read_error() != 0)
    return unreadable(where(record), waited_for, cursor_.read_error());
  if (progress == exec::Progress::kMismatch && cursor_.unknown_window() >= 0)
    return lost_window(where(record), members_[domain_.me()], waited_for, cursor_.unknown_window());
  // A peer that waits at a gate for this rank sees there which call this rank made instead.
  const bool between_rounds = waits_for_message() || cursor_.at_gate() || domain_.round() == 0;
  domain_.publish_completed(domain_.round() - (between_rounds ? 0 : 1));
  ACCORD_RETURN_IF_ERROR(find_mismatch());
  if (progress == exec::Progress::kMismatch)
    return mismatch_long_ago(where(record), members_[domain_.me()], waited_for);
  if (waited_for >= 0 && group_.peer_state(waited_for) == transport::PeerState::kLeft)
    return Status(StatusCode::kPeerLost,
                  fmt::format("{}: rank {} has closed its communicator and takes part in no further calls",
                              where(record), waited_for),
                  {waited_for});
  if (deadline.at() <= now) return timed_out(where(record));
  const std::lock_guard lock(mutex_);
  for (const auto& [work, number] : queue_)
    if (work->deadline().at() <= now)
      return timed_out(receives_ ? where(work->operation().record)
                                 : fmt::format("{}, queued behind {}", where(work->operation().record),
                                               sends_ ? exec::to_string(record, "send") : exec::to_string(record)));
  return {};
}

Status Channel::timed_out(std::string_view what) const {
  const std::vector<Rank> missing = waits_for_message() ? std::vector<Rank>{members_[0]} : ranks_late();
  const std::string kept = kept_.empty() ? "" : fmt::format(" (it has sent messages with tags {})", kept_.tags_text());
  return Status(StatusCode::kTimeout,
                fmt::format("{}: {} did not arrive in time{}; raise the timeout if it is only slow", what,
                            ranks_text(missing), kept),
                missing);
}

// A receiver's record of a round is only a guess until it has seen the sender's, so the receiver is the one that
// finds out whether they differ.
Status Channel::find_mismatch() const {
  if (sends_) return {};
  for (int m = 0; m < domain_.members(); ++m)
    if (const std::optional<Difference> found = find_difference(domain_, m);
        found && !(receives_ && found->mine.root != found->theirs.root))
      return mismatch(*found, where(found->mine), members_[domain_.me()], members_[m]);
  return {};
}

std::vector<Rank> Channel::ranks_late() const {
  const int waited_for = cursor_.waiting_for();
  if (cursor_.at_gate()) return waited_for < 0 ? std::vector<Rank>() : std::vector<Rank>{members_[waited_for]};
  // A rank that waits for another one itself, in this round or the one before, is not late.
  const Clock::time_point since = Clock::now() - operation_->timeout / 2;
  std::set<Rank> late;
  for (int m = 0; m < domain_.members(); ++m) {
    std::uint64_t its_word = 0;
    exec::RequestRecord record;
    if (m != domain_.me() && !domain_.record_of(m, domain_.round(), &its_word, &record))
      late.insert(members_[domain_.last_waited_for(m, since)]);
  }
  if (late.empty() && waited_for >= 0) late.insert(members_[domain_.last_waited_for(waited_for, since)]);
  return {late.begin(), late.end()};
}

Rank Channel::rank_waited_for() const {
  const int member = waits_for_message() ? 0 : cursor_.waiting_for();
  return member < 0 ? -1 : members_[member];
}

std::string Channel::where(const exec::RequestRecord& record) const {
  if (record.collective != Collective::kSendRecv) return group_.where(exec::name_of(record));
  const std::string tag = record.root == 0 ? "" : fmt::format(", tag {},", record.root);
  return group_.where(fmt::format("{} rank {}{}", sends_ ? "send to" : "recv from", members_[sends_ ? 1 : 0], tag));
}

}  // namespace accord::comm
