// The messages of a pair of ranks arrive in the order in which they were sent. With tags, receives may ask for them
// in another order. A receive without a tag begins at once, as if its message were next, so that programs without
// tags pay nothing: the round's word shows if the next message is another one, and if nothing arrives for a while,
// the sender's record of that round does. In that case, or if the receive has a tag, it waits for that record before
// it begins. A message with another tag is set aside: into the buffer of the first queued receive with its tag, which
// ends early, or into memory of its own, where receives look first.
#include "comm/channel/message_matcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "comm/group.hpp"
#include "comm/mismatch.hpp"

namespace accord::comm {
namespace {

/// A receive that began as if its message were next looks for another message at each power of two of its polls, and
/// at every multiple of this many.
constexpr std::uint32_t kExpectedPolls = 64;

std::size_t bytes_of(const exec::RequestRecord& record) { return record.count * size_of(record.dtype); }

}  // namespace

Status MessageMatcher::begin() {
  const exec::RequestRecord& record = runner_.operation().record;
  round_before_ = runner_.domain().round();
  history_before_ = runner_.domain().history();
  running_tag_.store(record.root, std::memory_order_relaxed);
  if (record.root == 0 && kept_.empty() && !side_message_) [[likely]] {
    expected_polls_ = 0;
    ACCORD_RETURN_IF_ERROR(runner_.begin_data(record, nullptr));
    runner_.begin_in(Stage::kExpected);
    return {};
  }
  runner_.begin_in(Stage::kMessage);
  return {};
}

exec::Progress MessageMatcher::poll(exec::PollLimits limits) {
  if (runner_.stage() == Stage::kMessage) return receive(limits);
  const exec::Progress progress = runner_.poll(limits);
  const bool has_ended = progress == exec::Progress::kDone || runner_.stage() == Stage::kRefused;
  return has_ended ? progress : check_expected(progress);
}

exec::Progress MessageMatcher::check_expected(exec::Progress progress) {
  if (const Status delivered = deliver_kept(); !delivered.ok()) return runner_.refuse(delivered);
  if (runner_.stage() != Stage::kExpected) return progress;
  exec::Domain& domain = runner_.domain();
  if (domain.round() > round_before_ + 1) {
    runner_.move_to(Stage::kData);
    return progress;
  }
  ++expected_polls_;
  const bool due =
      expected_polls_ > 1 && ((expected_polls_ & (expected_polls_ - 1)) == 0 || expected_polls_ % kExpectedPolls == 0);
  if (progress == exec::Progress::kPending && !due) return progress;
  std::uint64_t its_word = 0;
  exec::RequestRecord next;
  const bool is_at_gate = runner_.cursor().at_gate();
  if (!domain.record_of(0, round_before_ + 1, &its_word, &next)) {
    domain.publish_completed(round_before_);  // a long message waits for this where a short one was expected
    return is_at_gate ? progress : exec::Progress::kPending;
  }
  if (next.root == runner_.operation().record.root) {
    runner_.move_to(Stage::kData);
    return progress;
  }
  if (!is_at_gate) domain.cancel_round(history_before_);
  runner_.move_to(Stage::kMessage);
  return receive({});
}

exec::Progress MessageMatcher::receive(exec::PollLimits limits) {
  if (side_message_)
    if (const exec::Progress progress = continue_side_message(limits); progress != exec::Progress::kDone)
      return progress;
  const Operation& operation = runner_.operation();
  const Rank tag = operation.record.root;
  if (const std::optional<KeptMessage> kept = take_kept(tag)) {
    if (const Status delivered = deliver(*kept, operation); !delivered.ok()) return runner_.refuse(delivered);
    runner_.recorder().chose(kept->algorithm);
    return exec::Progress::kDone;
  }
  if (const Status delivered = deliver_kept(); !delivered.ok()) return runner_.refuse(delivered);
  exec::RequestRecord next;
  for (std::uint32_t checks = 1; !read_next(next); ++checks) {
    if (checks >= limits.checks) {
      wait_for_record();
      return exec::Progress::kPending;
    }
    cpu_relax();
  }
  if (next.root != tag) {
    if (const Status begun = begin_side_message(next, find_receive(next.root)); !begun.ok())
      return runner_.refuse(begun);
    // The caller sees that the position has moved, and polls again at once.
    const exec::Progress progress = continue_side_message(limits);
    return progress == exec::Progress::kDone ? exec::Progress::kPending : progress;
  }
  Status begun = check_fits(next, operation);
  if (begun.ok()) begun = runner_.begin_message(operation.record, nullptr, operation.output);
  if (!begun.ok()) return runner_.refuse(begun);
  runner_.move_to(Stage::kData);
  runner_.recorder().chose(runner_.algorithm());
  return poll(limits);
}

bool MessageMatcher::read_next(exec::RequestRecord& next) {
  std::uint64_t its_word = 0;
  exec::Domain& domain = runner_.domain();
  return domain.record_of(0, domain.round() + 1, &its_word, &next);
}

// The sender may be at a gate, or be remote, so that its words have to be fetched.
void MessageMatcher::wait_for_record() {
  exec::Domain& domain = runner_.domain();
  domain.publish_completed(domain.round());
  if (!domain.has_remotes()) return;
  domain.flush_remotes();
  domain.progress_remotes();
}

QueuedOperation MessageMatcher::find_receive(Rank tag) {
  const OperationQueue::Lock lock(queue_);
  if (kept_.has(tag)) return {};  // a receive that has just been queued must get the kept message first
  return lock.find([&](const Operation& entry) { return !runner_.is_running(entry) && entry.record.root == tag; });
}

Status MessageMatcher::begin_side_message(const exec::RequestRecord& record, QueuedOperation receive) {
  SideMessage started{.message = {.record = record}, .receive = std::move(receive), .recorder = runner_.recorder()};
  if (started.receive.work != nullptr) {
    const Operation& operation = started.receive.work->operation();
    ACCORD_RETURN_IF_ERROR(check_fits(record, operation));
    ACCORD_RETURN_IF_ERROR(runner_.begin_message(record, nullptr, operation.output));
    started.recorder.begin(started.receive.number, operation.record, bytes_of(record), runner_.algorithm());
  } else {
    started.message.memory.reset(new (std::nothrow) std::byte[bytes_of(record)]);
    if (started.message.memory == nullptr)
      return Status(StatusCode::kResourceExhausted,
                    fmt::format("{}: no memory to keep {} until it is received",
                                runner_.where(runner_.operation().record), exec::to_string(record, "a message")));
    ACCORD_RETURN_IF_ERROR(runner_.begin_message(record, nullptr, started.message.memory.get()));
  }
  started.message.algorithm = runner_.algorithm();
  side_message_ = std::move(started);
  return {};
}

exec::Progress MessageMatcher::continue_side_message(exec::PollLimits limits) {
  const exec::Progress progress = runner_.cursor().poll(limits);
  if (progress != exec::Progress::kDone) return progress;
  SideMessage ended = *std::exchange(side_message_, std::nullopt);
  if (ended.receive.work != nullptr) {
    ended.recorder.end(true);
    end_early(ended.receive);
  } else {
    const OperationQueue::Lock lock(queue_);
    kept_.keep(std::move(ended.message));
    has_new_kept_ = true;
  }
  return progress;
}

std::optional<KeptMessage> MessageMatcher::take_kept(Rank tag) {
  if (kept_.empty()) return std::nullopt;
  const OperationQueue::Lock lock(queue_);
  return kept_.take(tag);
}

// The running operation comes before those in the queue, and has already looked.
Status MessageMatcher::deliver_kept() {
  if (kept_.empty()) return {};
  const std::uint64_t pushed = queue_.pushed();
  if (std::exchange(pushed_at_delivery_, pushed) == pushed && !std::exchange(has_new_kept_, false)) return {};
  while (true) {
    QueuedOperation receive;
    std::optional<KeptMessage> message;
    {
      const OperationQueue::Lock lock(queue_);
      receive =
          lock.find([&](const Operation& entry) { return !runner_.is_running(entry) && kept_.has(entry.record.root); });
      if (receive.work == nullptr) return {};
      message = kept_.take(receive.work->operation().record.root);
    }
    const Operation& operation = receive.work->operation();
    ACCORD_RETURN_IF_ERROR(deliver(*message, operation));
    flight::OrderRecorder recorder = runner_.recorder();
    recorder.begin(receive.number, operation.record, bytes_of(operation.record), message->algorithm);
    recorder.end(true);
    end_early(receive);
  }
}

Status MessageMatcher::check_fits(const exec::RequestRecord& message, const Operation& receive) const {
  if (message.count == receive.record.count && message.dtype == receive.record.dtype) return {};
  return mismatch({.mine = receive.record, .theirs = message}, runner_.where(receive.record), runner_.rank_of(1),
                  runner_.rank_of(0));
}

Status MessageMatcher::deliver(const KeptMessage& message, const Operation& receive) const {
  ACCORD_RETURN_IF_ERROR(check_fits(message.record, receive));
  const std::size_t bytes = bytes_of(message.record);
  if (bytes > 0) std::memcpy(receive.output, message.memory.get(), bytes);
  return {};
}

bool MessageMatcher::has_spare(const OperationQueue::Lock& lock, Rank tag) const {
  const auto queued =
      std::count_if(lock.operations().begin(), lock.operations().end(),
                    [tag](const QueuedOperation& entry) { return entry.work->operation().record.root == tag; });
  return kept_.count(tag) > static_cast<std::size_t>(queued) && running_tag_.load(std::memory_order_relaxed) != tag;
}

// A message that arrives is kept. It is not given to a receive that has been queued meanwhile, since that receive may
// get the turn before the whole message has arrived.
Arrival MessageMatcher::find_message(const Operation& receive) {
  const Rank tag = receive.record.root;
  runner_.look_for(receive);
  if (!side_message_) {
    if (kept_.has(tag)) return Arrival::kYes;
    exec::RequestRecord next;
    if (!read_next(next)) {
      wait_for_record();
      return Arrival::kNo;
    }
    if (next.root == tag) return Arrival::kYes;
    if (const Status begun = begin_side_message(next, {}); !begun.ok()) {
      (void)runner_.refuse(begun);
      return Arrival::kPerhaps;
    }
  }
  if (continue_side_message({}) == exec::Progress::kMismatch) {
    const Status found = runner_.find_mismatch();
    const Status long_ago = mismatch_long_ago(runner_.where(receive.record), runner_.rank_of(1), runner_.rank_of(0));
    (void)runner_.refuse(found.ok() ? long_ago : found);
  }
  return Arrival::kPerhaps;
}

void MessageMatcher::end_early(const QueuedOperation& receive) {
  runner_.count_ended(receive.number);
  queue_.remove(receive);
  early_.push_back(receive.work);
}

}  // namespace accord::comm
