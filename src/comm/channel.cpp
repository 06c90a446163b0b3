// An operation that finds the channel idle takes the turn and runs on the caller's thread. Later ones are queued, and
// the progress thread takes over when the turn is given back. So a call on an idle channel costs no lock and no
// allocation once its plan is prepared, and calls run in the order in which they were made.
#include "comm/channel.hpp"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "comm/group.hpp"
#include "comm/progress.hpp"
#include "plan/registry.hpp"

namespace accord::comm {
namespace {

/// Polls of a stuck operation by the progress thread between two looks for failures.
constexpr std::uint32_t kStalledPolls = 256;
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
      domain_(std::move(domain)),
      topology_(std::move(topology)),
      members_(std::move(members)),
      policy_(group.wait_policy()),
      limits_(limits_of(group)),
      recorder_(recorder),
      sends_(direction == Direction::kSend),
      receives_(direction == Direction::kReceive) {
  if (!topology_.readable()) return;
  for (const Rank r : topology_.ranks()) processes_.push_back(topology_.place(r).process);
  in_memory_.processes = &processes_;
}

void Channel::release_turn() {
  if (turns_.release()) hand_over();
}

Status Channel::run(const Operation& operation) {
  if (!turns_.try_acquire(Turns::kCall)) {
    if (const Status may_not = check_may_wait(); !may_not.ok()) return may_not.with_context(where(operation.record));
    return start(operation)->wait();
  }
  Status status = run_owned(operation, last_number_ + 1);
  release_turn();
  return status;
}

Status Channel::run(const Call& call, const CallOptions& options) {
  if (!turns_.try_acquire(Turns::kCall)) {
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
    return run_owned(operation, last_number_ + 1);
  }
  ACCORD_RETURN_IF_ERROR(group_.check(call));
  return group_.with_operation(call, options, [&](const Operation& operation) {
    if (!is_alike(call, call)) return run_owned(operation, last_number_ + 1);
    last_call_ = {.call = call, .operation = operation};
    return run_owned(last_call_.operation, last_number_ + 1);
  });
}

std::shared_ptr<PendingWork> Channel::start(const Operation& operation) {
  Queued queued = enqueue(operation);
  if (queued.owned) begin_driving(operation);
  return std::move(queued.work);
}

Channel::Queued Channel::enqueue(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  return enqueue_locked(operation);
}

Channel::Queued Channel::enqueue_locked(const Operation& operation) {
  auto work = std::make_shared<PendingWork>(group_.handle(), this, operation);
  const Turns::Place place = turns_.queue();
  queue_.push_back({work, place.number});
  queued_.fetch_add(1, std::memory_order_release);
  recorder_.queue(place.number, place.before, operation.record);
  return {std::move(work), place.before == 0};
}

Status Channel::run_owned(const Operation& operation, std::uint64_t number) {
  const exec::RequestRecord& record = operation.record;
  ACCORD_RETURN_IF_ERROR(begin(operation, number));
  // A quick operation is recorded once this rank's part is done, while the peers' parts are on their way.
  const std::size_t bytes = bytes_of(operation);
  bool recorded = recorder_.times(bytes) || stage_ != Stage::kData;
  if (recorded) recorder_.begin(number_, visible_record(operation), bytes, algorithm_);
  Waiter waiter(policy_, limits_.checks);
  std::uint64_t position = cursor_.position();
  std::optional<Deadline> deadline;  // set once the wait is slow, so that quick calls do not read the clock
  while (true) {
    const exec::Progress progress = poll(limits_);
    notify_early();
    if (!recorded) {
      recorder_.begin(number_, visible_record(operation), bytes, algorithm_);
      recorded = true;
    }
    if (progress == exec::Progress::kDone) [[likely]] {
      clear_waiting();
      recorder_.end(true);
      return {};
    }
    recorder_.waiting();
    const bool mismatch = progress == exec::Progress::kMismatch;
    if (!mismatch && cursor_.position() != position) {
      position = cursor_.position();
      waiter = Waiter(policy_, limits_.checks);
      clear_waiting();
    } else if (mismatch || waiter.pause()) {
      if (!deadline) deadline = Deadline::in(operation.timeout);
      if (const Status failure = examine(progress, record, *deadline); !failure.ok())
        if (std::optional<Status> end = conclude(failure)) {
          notify_early();
          recorder_.end(end->ok());
          return *std::move(end);
        }
    }
  }
}

Status Channel::begin(const Operation& operation, std::uint64_t number) {
  while (unnotified_.load(std::memory_order_acquire) != 0) [[unlikely]] std::this_thread::yield();
  number_ = number;
  last_number_ = std::max(last_number_, number);
  if (!group_.healthy()) [[unlikely]] {
    if (!std::exchange(has_refused_call_, true)) {
      recorder_.refuse(number_, operation.record);
      group_.dump_again();
    }
    return group_.examine_alarm(where(operation.record));
  }
  operation_ = &operation;
  waited_long_ = false;
  if (operation.record.phase == exec::Phase::kCountsFirst) [[unlikely]]
    return begin_counts();
  if (receives_) return begin_receive(operation);
  if (group_.windows().version() != 0) [[unlikely]]
    return begin_in_windows(operation);
  return begin_data(operation.record, operation.extent,
                    &operation == &last_call_.operation ? last_call_.prepared : nullptr);
}

// Ranks agree on whether the buffers of all ranks are in windows, whichever plan serves them.
Status Channel::begin_in_windows(const Operation& operation) {
  WindowRegistry& windows = group_.windows();
  if (windows_ == nullptr || windows_->version != windows.version()) windows_ = windows.table();
  place_buffers(*windows_, operation, domain_, placement_);
  return begin_data(operation.record, operation.extent);
}

void Channel::forget_windows() {
  if (!turns_.try_acquire(Turns::kNoCall)) return;
  windows_ = nullptr;
  placement_ = {};
  release_turn();
}

Status Channel::begin_counts() {
  placement_ = {};
  counts_.begin(*operation_, domain_.members());
  ACCORD_ASSIGN_OR_RETURN(const Prepared* const prepared, prepare(operation_->record, nullptr));
  start_cursor(*prepared, counts_.input(), counts_.output());
  algorithm_ = prepared->algorithm;
  stage_ = Stage::kCounts;
  return {};
}

void Channel::start_cursor(const Prepared& prepared, const void* input, void* output) {
  if (!prepared.plan.reads) [[likely]]
    return cursor_.start(domain_, prepared.plan, input, output, operation_->factor, placement_);
  // This rank must not write to memory that peers still read. For a plan that needs input and output apart, they read
  // a copy.
  if (prepared.apart && input == output) {  // no other overlap passes check_call()
    const auto* const first = static_cast<const std::byte*>(input);
    copied_.assign(first, first + bytes_of(*operation_) * static_cast<std::size_t>(domain_.members()));
    input = copied_.data();
  }
  const auto place = [](const void* address) {
    return address == nullptr ? exec::kNoPlace : reinterpret_cast<exec::PlaceWord>(address);
  };
  in_memory_.input = place(input);
  in_memory_.output = place(output);
  cursor_.start(domain_, prepared.plan, input, output, operation_->factor, in_memory_);
}

Status Channel::begin_data(const exec::RequestRecord& record, const plan::Extent* extent, const Prepared* known) {
  if (record.root != 0 && record.collective == Collective::kSendRecv) [[unlikely]] {
    stage_ = Stage::kData;
    return begin_message(record, operation_->input, operation_->output);
  }
  const Prepared* prepared = known;
  if (known == nullptr || prepared_version_ != plan::registry_version()) {
    prepared = slot_of(record, extent).get();
    if (!serves(prepared, record, extent)) [[unlikely]] {
      ACCORD_ASSIGN_OR_RETURN(prepared, prepare(record, extent));
    }
    if (operation_ == &last_call_.operation && !registered()) last_call_.prepared = prepared;
  }
  start_cursor(*prepared, operation_->input, operation_->output);
  algorithm_ = prepared->algorithm;
  stage_ = Stage::kData;
  return {};
}

exec::Progress Channel::poll(exec::PollLimits limits) {
  if (stage_ == Stage::kRefused) return exec::Progress::kMismatch;
  if (stage_ == Stage::kMessage) [[unlikely]]
    return receive(limits);
  const exec::Progress progress = cursor_.poll(limits);
  if (progress != exec::Progress::kDone) return receives_ ? check_other_messages(progress) : progress;
  if (stage_ == Stage::kCounts) return continue_with_data();
  // A peer that has given up does not wait until its memory has been read.
  if (cursor_.plan().reads && !group_.healthy()) {
    stage_ = Stage::kRefused;
    return exec::Progress::kMismatch;
  }
  return progress;
}

exec::Progress Channel::continue_with_data() {
  const Result<std::size_t> longest = counts_.longest_part(*operation_, domain_.me());
  if (!longest.ok()) return refuse(longest.status().with_context(where(operation_->record)));
  exec::RequestRecord record = operation_->record;
  record.phase = exec::Phase::kUnequalParts;
  record.count = *longest;
  plan::Extent extent = *operation_->extent;
  extent.longest_part = *longest;
  const Status status = begin_data(record, &extent);
  if (!status.ok()) return refuse(status);
  recorder_.chose(algorithm_);
  return exec::Progress::kPending;
}

exec::Progress Channel::refuse(const Status& failure) {
  (void)group_.fail(failure);
  stage_ = Stage::kRefused;
  return exec::Progress::kMismatch;
}

Channel::Advance Channel::advance(Ended& ended, exec::PollLimits limits) {
  QueuedOperation front;
  {
    const std::lock_guard lock(mutex_);
    front = queue_.front();
  }
  const std::shared_ptr<PendingWork>& work = front.work;
  const Operation& operation = work->operation();
  if (!front_started_) {
    if (Status status = begin(operation, front.number); !status.ok()) {
      recorder_.drop(number_);
      return end_front(std::move(status), ended);
    }
    recorder_.begin(number_, operation.record, bytes_of(operation), algorithm_);
    front_started_ = true;
    front_stalled_polls_ = 0;
    front_position_ = cursor_.position();
  }
  const exec::Progress progress = poll(limits);
  ended.early = std::exchange(early_, {});
  if (!ended.early.empty()) note_unnotified(ended);
  if (progress == exec::Progress::kDone) {
    clear_waiting();
    recorder_.end(true);
    return end_front({}, ended);
  }
  recorder_.waiting();
  if (progress == exec::Progress::kPending && cursor_.position() != front_position_) {
    front_position_ = cursor_.position();
    front_stalled_polls_ = 0;
    clear_waiting();
    return Advance::kMoved;
  }
  if (progress == exec::Progress::kMismatch || ++front_stalled_polls_ % kStalledPolls == 0) {
    const Status failure = examine(progress, operation.record, work->deadline());
    if (!failure.ok())
      if (std::optional<Status> end = conclude(failure)) {
        recorder_.end(end->ok());
        return end_front(*std::move(end), ended);
      }
  }
  return Advance::kStalled;
}

void Channel::Ended::notify() {
  if (!has_any()) return;
  std::vector<PendingWork::Callbacks> callbacks;
  callbacks.reserve(early.size());
  for (const auto& one : early) callbacks.push_back(one->end({}));
  const PendingWork::Callbacks last = work == nullptr ? PendingWork::Callbacks() : work->end(std::move(status));
  // Callbacks may make calls that begin on this channel.
  std::exchange(unnotified, nullptr)->fetch_sub(1, std::memory_order_release);
  for (std::size_t i = 0; i < callbacks.size(); ++i) early[i]->call_back(callbacks[i]);
  if (work != nullptr) work->call_back(last);
  early.clear();
  work = nullptr;
}

Channel::Advance Channel::end_front(Status status, Ended& ended) {
  front_started_ = false;
  ended.status = std::move(status);
  ended.early.insert(ended.early.end(), early_.begin(), early_.end());
  early_.clear();
  note_unnotified(ended);  // before another thread may have the turn
  {
    const std::lock_guard lock(mutex_);
    ended.work = std::move(queue_.front().work);
    queue_.pop_front();
  }
  return turns_.next() ? Advance::kMoved : Advance::kIdle;
}

}  // namespace accord::comm
