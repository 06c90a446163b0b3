// The messages of a pair of ranks arrive in the order in which they were sent. With tags, receives may ask for them
// in another order. A receive without a tag begins at once, as if its message were next, so that programs without
// tags pay nothing: the round's word shows if the next message is another one, and if nothing arrives for a while,
// the sender's record of that round does. In that case, or if the receive has a tag, it waits for that record before
// it begins. A message with another tag is set aside: into the buffer of the first queued receive with its tag, which
// ends early, or into memory of its own, where receives look first.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "comm/channel.hpp"
#include "comm/group.hpp"
#include "comm/mismatch.hpp"

namespace accord::comm {
namespace {

/// A receive that began as if its message were next looks for another message at each power of two of its polls, and
/// at every multiple of this many.
constexpr std::uint32_t kSpeculativePolls = 64;

std::size_t bytes_of(const exec::RequestRecord& record) { return record.count * size_of(record.dtype); }

}  // namespace

Status Channel::begin_message(const exec::RequestRecord& record, const void* input, void* output) {
  exec::RequestRecord without_tag = record;
  without_tag.root = 0;
  ACCORD_ASSIGN_OR_RETURN(const Prepared* const prepared, prepare(without_tag, nullptr));
  cursor_.start(domain_, prepared->plan, input, output, 1.0, in_memory_, record.root);
  algorithm_ = prepared->algorithm;
  return {};
}

Status Channel::begin_receive(const Operation& operation) {
  round_before_ = domain_.round();
  history_before_ = domain_.history();
  running_tag_.store(operation.record.root, std::memory_order_relaxed);
  is_speculative_ = operation.record.root == 0 && kept_.empty() && !side_message_;
  if (is_speculative_) [[likely]] {
    speculative_polls_ = 0;
    return begin_data(operation.record, nullptr);
  }
  stage_ = Stage::kMessage;
  algorithm_ = 0;
  return {};
}

exec::Progress Channel::check_other_messages(exec::Progress progress) {
  if (const Status delivered = deliver_kept(); !delivered.ok()) return refuse(delivered);
  if (!is_speculative_) return progress;
  if (domain_.round() > round_before_ + 1) {
    is_speculative_ = false;
    return progress;
  }
  ++speculative_polls_;
  const bool due = speculative_polls_ > 1 && ((speculative_polls_ & (speculative_polls_ - 1)) == 0 ||
                                              speculative_polls_ % kSpeculativePolls == 0);
  if (progress == exec::Progress::kPending && !due) return progress;
  std::uint64_t its_word = 0;
  exec::RequestRecord next;
  if (!domain_.record_of(0, round_before_ + 1, &its_word, &next)) {
    domain_.publish_completed(round_before_);  // a long message waits for this where a short one was expected
    return cursor_.at_gate() ? progress : exec::Progress::kPending;
  }
  is_speculative_ = false;
  if (next.root == operation_->record.root) return progress;
  if (!cursor_.at_gate()) domain_.cancel_round(history_before_);
  stage_ = Stage::kMessage;
  return receive({});
}

exec::Progress Channel::receive(exec::PollLimits limits) {
  if (side_message_)
    if (const exec::Progress progress = continue_side_message(limits); progress != exec::Progress::kDone)
      return progress;
  const Rank tag = operation_->record.root;
  if (const std::optional<KeptMessage> kept = take_kept(tag)) {
    if (const Status delivered = deliver(*kept, *operation_); !delivered.ok()) return refuse(delivered);
    recorder_.chose(kept->algorithm);
    return exec::Progress::kDone;
  }
  if (const Status delivered = deliver_kept(); !delivered.ok()) return refuse(delivered);
  std::uint64_t its_word = 0;
  exec::RequestRecord next;
  for (std::uint32_t checks = 1; !domain_.record_of(0, domain_.round() + 1, &its_word, &next); ++checks) {
    if (checks >= limits.checks) {
      wait_for_record();
      return exec::Progress::kPending;
    }
    cpu_relax();
  }
  if (next.root != tag) {
    if (const Status begun = begin_side_message(next, find_receive(next.root)); !begun.ok()) return refuse(begun);
    // The caller sees that the position has moved, and polls again at once.
    const exec::Progress progress = continue_side_message(limits);
    return progress == exec::Progress::kDone ? exec::Progress::kPending : progress;
  }
  Status begun = check_fits(next, *operation_);
  if (begun.ok()) begun = begin_message(operation_->record, nullptr, operation_->output);
  if (!begun.ok()) return refuse(begun);
  stage_ = Stage::kData;
  is_speculative_ = false;
  recorder_.chose(algorithm_);
  return poll(limits);
}

// The sender may be at a gate, or be remote, so that its words have to be fetched.
void Channel::wait_for_record() {
  domain_.publish_completed(domain_.round());
  if (!domain_.has_remotes()) return;
  domain_.flush_remotes();
  domain_.progress_remotes();
}

Channel::QueuedOperation Channel::find_receive(Rank tag) {
  const std::lock_guard lock(mutex_);
  if (kept_.has(tag)) return {};  // a receive that has just been queued must get the kept message first
  const auto found = std::find_if(queue_.begin(), queue_.end(), [&](const QueuedOperation& entry) {
    const Operation& operation = entry.work->operation();
    return &operation != operation_ && operation.record.root == tag;
  });
  return found == queue_.end() ? QueuedOperation() : *found;
}

Status Channel::begin_side_message(const exec::RequestRecord& record, QueuedOperation receive) {
  SideMessage started{.message = {.record = record}, .receive = std::move(receive), .recorder = recorder_};
  if (started.receive.work != nullptr) {
    const Operation& operation = started.receive.work->operation();
    ACCORD_RETURN_IF_ERROR(check_fits(record, operation));
    ACCORD_RETURN_IF_ERROR(begin_message(record, nullptr, operation.output));
    started.recorder.begin(started.receive.number, operation.record, bytes_of(record), algorithm_);
  } else {
    started.message.memory.reset(new (std::nothrow) std::byte[bytes_of(record)]);
    if (started.message.memory == nullptr)
      return Status(StatusCode::kResourceExhausted,
                    fmt::format("{}: no memory to keep {} until it is received", where(operation_->record),
                                exec::to_string(record, "a message")));
    ACCORD_RETURN_IF_ERROR(begin_message(record, nullptr, started.message.memory.get()));
  }
  started.message.algorithm = algorithm_;
  side_message_ = std::move(started);
  return {};
}

exec::Progress Channel::continue_side_message(exec::PollLimits limits) {
  const exec::Progress progress = cursor_.poll(limits);
  if (progress != exec::Progress::kDone) return progress;
  SideMessage ended = *std::exchange(side_message_, std::nullopt);
  if (ended.receive.work != nullptr) {
    ended.recorder.end(true);
    end_early(ended.receive);
  } else {
    const std::lock_guard lock(mutex_);
    kept_.keep(std::move(ended.message));
    has_new_kept_ = true;
  }
  return progress;
}

std::optional<KeptMessage> Channel::take_kept(Rank tag) {
  if (kept_.empty()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return kept_.take(tag);
}

// The running operation comes before those in the queue, and has already looked.
Status Channel::deliver_kept() {
  if (kept_.empty()) return {};
  const std::uint64_t queued = queued_.load(std::memory_order_acquire);
  if (std::exchange(queued_at_delivery_, queued) == queued && !std::exchange(has_new_kept_, false)) return {};
  while (true) {
    QueuedOperation receive;
    std::optional<KeptMessage> message;
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::find_if(queue_.begin(), queue_.end(), [this](const QueuedOperation& entry) {
        const Operation& operation = entry.work->operation();
        return &operation != operation_ && kept_.has(operation.record.root);
      });
      if (found == queue_.end()) return {};
      receive = *found;
      message = kept_.take(receive.work->operation().record.root);
    }
    const Operation& operation = receive.work->operation();
    ACCORD_RETURN_IF_ERROR(deliver(*message, operation));
    flight::OrderRecorder recorder = recorder_;
    recorder.begin(receive.number, operation.record, bytes_of(operation.record), message->algorithm);
    recorder.end(true);
    end_early(receive);
  }
}

Status Channel::check_fits(const exec::RequestRecord& message, const Operation& receive) const {
  if (message.count == receive.record.count && message.dtype == receive.record.dtype) return {};
  return mismatch({.mine = receive.record, .theirs = message}, where(receive.record), members_[1], members_[0]);
}

Status Channel::deliver(const KeptMessage& message, const Operation& receive) const {
  ACCORD_RETURN_IF_ERROR(check_fits(message.record, receive));
  const std::size_t bytes = bytes_of(message.record);
  if (bytes > 0) std::memcpy(receive.output, message.memory.get(), bytes);
  return {};
}

// If another thread has the turn, it keeps messages of this tag that no other receive takes. This receive is queued
// only once there is a message for it that belongs to no earlier receive.
Channel::ReceiveAttempt Channel::try_receive(const Operation& operation) {
  if (!turns_.try_acquire(Turns::kNoCall)) {
    Queued queued;
    {
      const std::lock_guard lock(mutex_);
      const Rank tag = operation.record.root;
      const auto before = std::count_if(queue_.begin(), queue_.end(), [tag](const QueuedOperation& entry) {
        return entry.work->operation().record.root == tag;
      });
      if (kept_.count(tag) <= static_cast<std::size_t>(before) || running_tag_.load(std::memory_order_relaxed) == tag)
        return {.arrival = Arrival::kPerhaps};
      queued = enqueue_locked(operation);
    }
    if (queued.owned) begin_driving(operation);
    return {Arrival::kYes, queued.work->wait()};
  }
  ReceiveAttempt attempt;
  if (group_.healthy()) attempt.arrival = find_message(operation);
  if (attempt.arrival == Arrival::kYes) attempt.status = run_owned(operation, turns_.count_call());
  release_turn();
  return attempt;
}

// A message that arrives is kept. It is not given to a receive that has been queued meanwhile, since that receive may
// get the turn before the whole message has arrived.
Channel::Arrival Channel::find_message(const Operation& operation) {
  const Rank tag = operation.record.root;
  operation_ = &operation;
  stage_ = Stage::kMessage;
  std::uint64_t its_word = 0;
  exec::RequestRecord next;
  if (!side_message_) {
    if (kept_.has(tag)) return Arrival::kYes;
    if (!domain_.record_of(0, domain_.round() + 1, &its_word, &next)) {
      wait_for_record();
      return Arrival::kNo;
    }
    if (next.root == tag) return Arrival::kYes;
    if (const Status begun = begin_side_message(next, {}); !begun.ok()) {
      (void)group_.fail(begun);
      return Arrival::kPerhaps;
    }
  }
  if (continue_side_message({}) == exec::Progress::kMismatch) {
    const Status found = find_mismatch();
    (void)group_.fail(found.ok() ? mismatch_long_ago(where(operation.record), members_[1], members_[0]) : found);
  }
  return Arrival::kPerhaps;
}

void Channel::end_early(const QueuedOperation& receive) {
  last_number_ = std::max(last_number_, receive.number);
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(queue_, [&](const QueuedOperation& entry) { return entry.work == receive.work; });
  }
  (void)turns_.next();  // this does not end the turn of the running operation
  early_.push_back(receive.work);
}

}  // namespace accord::comm
