// An operation that finds the channel idle takes the turn and runs on the caller's thread. Later ones are queued, and
// the progress thread takes over when the turn is given back. So a call on an idle channel costs no lock and no
// allocation once its plan is prepared, and calls run in the order in which they were made.
#include "comm/channel/channel.hpp"

#include <optional>
#include <utility>

#include "comm/group.hpp"
#include "comm/progress.hpp"

namespace accord::comm {
namespace {

/// How often a call that does not proceed looks for failures. By time, because a poll may last as long as the time
/// slice of a thread that computes on the same core; the clock is read once in some polls.
constexpr auto kExamineInterval = std::chrono::milliseconds(1);
constexpr std::uint32_t kPollsPerClock = 8;
/// A rank that has a core to itself looks for about 0.5 us in one place before it does anything else. Where ranks
/// share cores, only as many ranks run as there are cores. If no more signals are missing than ranks run beside this
/// one, they may arrive in less time than the core takes to switch to another rank and back.
exec::PollLimits limits_of(const Group& group) {
  if (group.wait_policy() == WaitPolicy::kSpin) return {.checks = 50};
  if (group.options().hints.wait || group.topology().host_count() > 1) return {};
  return {.checks = 25, .missing = group.topology().cores_of_host(0) - 1};
}

}  // namespace

Channel::Channel(Group& group, exec::Domain domain, topology::Topology topology, std::vector<Rank> members,
                 flight::OrderRecorder recorder, Direction direction)
    : group_(group),
      policy_(group.wait_policy()),
      limits_(limits_of(group)),
      direction_(direction),
      runner_(group, std::move(domain), std::move(topology), std::move(members), recorder, direction) {
  if (direction == Direction::kReceive) matcher_.emplace(runner_, queue_);
}

void Channel::release_turn() {
  if (queue_.turns().release()) hand_over();
}

Status Channel::run(const Operation& operation) {
  if (!queue_.turns().try_acquire(Turns::kCall)) {
    if (const Status may_not = check_may_wait(); !may_not.ok())
      return may_not.with_context(runner_.where(operation.record));
    return start(operation)->wait();
  }
  Status status = run_owned(operation, runner_.next_number());
  release_turn();
  return status;
}

Status Channel::run(const Call& call, const CallOptions& options) {
  if (!queue_.turns().try_acquire(Turns::kCall)) {
    if (const Status may_not = check_may_wait(); !may_not.ok())
      return may_not.with_context(group_.where(name_of(call)));
    return group_.start(call, options).wait();
  }
  Status status = run_owned(call, options);
  release_turn();
  return status;
}

Status Channel::run_owned(const Call& call, const CallOptions& options) {
  if (is_alike(call, last_call_.call)) [[likely]] {
    Operation& operation = last_call_.operation;
    operation.input = call.input.data;
    operation.output = call.output.data;
    operation.timeout = options.timeout.value_or(group_.options().timeout);
    return run_owned(operation, runner_.next_number());
  }
  ACCORD_RETURN_IF_ERROR(group_.check(call));
  return group_.with_operation(call, options, [&](const Operation& operation) {
    if (!is_alike(call, call)) return run_owned(operation, runner_.next_number());
    last_call_ = {.call = call, .operation = operation};
    return run_owned(last_call_.operation, runner_.next_number());
  });
}

std::shared_ptr<PendingWork> Channel::start(const Operation& operation) {
  Queued queued = enqueue(operation);
  if (queued.owned) begin_driving(operation);
  return std::move(queued.work);
}

Channel::Queued Channel::enqueue(const Operation& operation) {
  OperationQueue::Lock lock(queue_);
  return enqueue(lock, operation);
}

Channel::Queued Channel::enqueue(OperationQueue::Lock& lock, const Operation& operation) {
  auto work = std::make_shared<PendingWork>(group_.handle(), this, operation);
  const Turns::Place place = lock.push(work);
  runner_.recorder().queue(place.number, place.before, operation.record);
  return {std::move(work), place.before == 0};
}

Status Channel::begin(const Operation& operation, std::uint64_t number) {
  queue_.wait_until_notified();
  ACCORD_RETURN_IF_ERROR(runner_.accept(operation, number));
  if (matcher_) return matcher_->begin();
  return runner_.begin(&operation == &last_call_.operation ? &last_call_.plan : nullptr);
}

Status Channel::run_owned(const Operation& operation, std::uint64_t number) {
  const exec::RequestRecord& record = operation.record;
  ACCORD_RETURN_IF_ERROR(begin(operation, number));
  // A quick operation is recorded once this rank's part is done, while the peers' parts are on their way.
  const std::size_t bytes = bytes_of(operation);
  const Stage stage = runner_.stage();
  bool recorded = flight::OrderRecorder::times(bytes) || (stage != Stage::kData && stage != Stage::kExpected);
  if (recorded) runner_.record_begin(bytes);
  Waiter waiter(policy_, limits_.checks);
  std::uint64_t position = runner_.cursor().position();
  std::optional<Deadline> deadline;  // set once the wait is slow, so that quick calls do not read the clock
  const auto notify_early = [this] {
    if (!matcher_) [[likely]]
      return;
    for (const auto& work : matcher_->take_early()) work->finish({});
  };
  while (true) {
    const exec::Progress progress = poll(limits_);
    notify_early();
    if (!recorded) {
      runner_.record_begin(bytes);
      recorded = true;
    }
    if (progress == exec::Progress::kDone) [[likely]] {
      runner_.clear_waiting();
      runner_.recorder().end(true);
      return {};
    }
    runner_.recorder().waiting();
    const bool mismatch = progress == exec::Progress::kMismatch;
    if (!mismatch && runner_.cursor().position() != position) {
      position = runner_.cursor().position();
      waiter = Waiter(policy_, limits_.checks);
      runner_.clear_waiting();
    } else if (mismatch || waiter.pause()) {
      if (!deadline) deadline = Deadline::in(operation.timeout);
      if (const Status failure = examine(progress, record, *deadline); !failure.ok())
        if (std::optional<Status> end = conclude(failure)) {
          notify_early();
          runner_.recorder().end(end->ok());
          return *std::move(end);
        }
    }
  }
}

Channel::Advance Channel::advance(EndedWorks& ended, exec::PollLimits limits) {
  const auto [work, number] = queue_.front();
  const Operation& operation = work->operation();
  if (!front_.has_begun) {
    if (Status status = begin(operation, number); !status.ok()) {
      runner_.recorder().drop(number);
      return end_front(std::move(status), ended);
    }
    runner_.record_begin(bytes_of(operation));
    front_ = {.has_begun = true, .position = runner_.cursor().position()};
  }
  const exec::Progress progress = poll(limits);
  if (matcher_) ended.early = matcher_->take_early();
  if (!ended.early.empty()) queue_.note_unnotified(ended);
  if (progress == exec::Progress::kDone) {
    runner_.clear_waiting();
    runner_.recorder().end(true);
    return end_front({}, ended);
  }
  runner_.recorder().waiting();
  if (progress == exec::Progress::kPending && runner_.cursor().position() != front_.position) {
    front_ = {.has_begun = true, .position = runner_.cursor().position()};
    runner_.clear_waiting();
    return Advance::kMoved;
  }
  if (progress == exec::Progress::kMismatch || is_examination_due()) {
    const Status failure = examine(progress, operation.record, work->deadline());
    if (!failure.ok())
      if (std::optional<Status> end = conclude(failure)) {
        runner_.recorder().end(end->ok());
        return end_front(*std::move(end), ended);
      }
  }
  return Advance::kStalled;
}

bool Channel::is_examination_due() {
  if (++front_.stalled_polls % kPollsPerClock != 0) return false;
  const auto now = Clock::now();
  if (front_.stalled_polls == kPollsPerClock) front_.examined = now;  // it begins to stall
  if (now - front_.examined < kExamineInterval) return false;
  front_.examined = now;
  return true;
}

Channel::Advance Channel::end_front(Status status, EndedWorks& ended) {
  front_.has_begun = false;
  ended.status = std::move(status);
  if (matcher_)
    for (auto& work : matcher_->take_early()) ended.early.push_back(std::move(work));
  return queue_.end_front(ended) ? Advance::kMoved : Advance::kIdle;
}

// If another thread has the turn, it keeps messages of this tag that no other receive takes. This receive is queued
// only once there is a message for it that belongs to no earlier receive.
Channel::ReceiveAttempt Channel::try_receive(const Operation& operation) {
  Turns& turns = queue_.turns();
  if (!turns.try_acquire(Turns::kNoCall)) {
    Queued queued;
    {
      OperationQueue::Lock lock(queue_);
      if (!matcher_->has_spare(lock, operation.record.root)) return {.arrival = Arrival::kPerhaps};
      queued = enqueue(lock, operation);
    }
    if (queued.owned) begin_driving(operation);
    return {Arrival::kYes, queued.work->wait()};
  }
  ReceiveAttempt attempt;
  if (group_.state().healthy()) attempt.arrival = matcher_->find_message(operation);
  if (attempt.arrival == Arrival::kYes) attempt.status = run_owned(operation, turns.count_call());
  release_turn();
  return attempt;
}

void Channel::forget_windows() {
  if (!queue_.turns().try_acquire(Turns::kNoCall)) return;
  runner_.forget_windows();
  release_turn();
}

}  // namespace accord::comm
