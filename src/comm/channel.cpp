// Who finds nobody before it takes the turn and runs; whoever else comes queues up and the progress thread takes over when
// the turn is given back. So a call that meets an idle channel costs no lock and no allocation once its plan is prepared, and
// calls run in the order in which they were made.
#include "comm/channel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.hpp"
#include "comm/group.hpp"
#include "comm/mismatch.hpp"
#include "comm/progress.hpp"
#include "plan/registry.hpp"

namespace accord::comm {
namespace {

/// The progress thread polls a stuck operation this often between two looks for failures.
constexpr std::uint32_t kLookEvery = 256;
/// What is started and no larger than that is driven by its caller as far as it goes: its own part takes a microsecond or two.
constexpr std::size_t kDrivenAtOnce = 8 << 10;
/// A rank that has a core to itself looks some 0.5 us in one place before it does anything else. Of ranks that share cores only
/// as many run as there are cores: if no more are missing than run beside this one they may come in less time than its
/// core takes to go to another and come back.
exec::Patience patience_of(const Group& group) {
  if (group.wait_policy() == WaitPolicy::kSpin) return {.looks = 50};
  if (group.options().hints.wait || group.topology().host_count() > 1) return {};
  return {.looks = 25, .missing = group.topology().cores_of_host(0) - 1};
}

/// What the operation counts as: a buffer or one part of it, or where parts differ what this rank has of them.
std::size_t bytes_of(const Operation& operation) {
  if (operation.extent == nullptr) return operation.record.count * size_of(operation.record.dtype);
  const plan::Extent& extent = *operation.extent;
  return std::max(extent.input_count, extent.output_count) * size_of(operation.record.dtype);
}

}  // namespace

Channel::Channel(Group& group, exec::Domain domain, topology::Topology topology, std::vector<Rank> members,
                 flight::OrderRecorder recorder)
    : group_(group),
      domain_(std::move(domain)),
      topology_(std::move(topology)),
      members_(std::move(members)),
      policy_(group.wait_policy()),
      patience_(patience_of(group)),
      recorder_(recorder) {
  if (!topology_.readable()) return;
  for (const Rank r : topology_.ranks()) processes_.push_back(topology_.place(r).process);
  in_memory_.processes = &processes_;
}

void Channel::give_back() {
  if (turns_.give_back()) hand_over();
}

void Channel::hand_over() {
  const std::lock_guard lock(driving_);
  handed_over_ = true;
  ProgressThread::instance().activate(group_.shared_from_this(), *this, ++handovers_);
}

void Channel::begin_driving(const Operation& operation) {
  const bool quick = bytes_of(operation) <= kDrivenAtOnce && operation.extent == nullptr;
  for (Advance advanced = Advance::kMoved; quick && advanced == Advance::kMoved;) {
    Ended ended;
    advanced = advance(ended, patience_);
    ended.tell();
    if (advanced == Advance::kIdle) return;
  }
  hand_over();
}

Channel::Advance Channel::advance_handed_over(Ended& ended, exec::Patience patience) {
  const Advance advanced = advance(ended, patience);
  if (advanced == Advance::kIdle) handed_over_ = false;
  return advanced;
}

Channel::Driven Channel::drive(std::uint64_t handover) {
  Ended ended;
  Advance advanced;
  {
    const std::unique_lock lock(driving_, std::try_to_lock);
    if (!lock.owns_lock()) return Driven::kByAnother;
    if (!handed_over_ || handovers_ != handover) return Driven::kIdle;
    advanced = advance_handed_over(ended, {});
  }
  ended.tell();
  switch (advanced) {
    case Advance::kIdle: return Driven::kIdle;
    case Advance::kMoved: return Driven::kMoved;
    case Advance::kStuck: break;
  }
  return Driven::kStuck;
}

bool Channel::drive_until_ended(const PendingWork& work, Deadline deadline) {
  std::unique_lock lock(driving_, std::try_to_lock);
  if (!lock.owns_lock() || !handed_over_) return false;
  Waiter waiter(policy_, patience_.looks);
  while (!work.done()) {
    Ended ended;
    const Advance advanced = advance_handed_over(ended, patience_);
    if (ended.work != nullptr) {
      lock.unlock();
      ended.tell();
      if (advanced == Advance::kIdle || !lock.try_lock() || !handed_over_) return true;
    }
    if (advanced == Advance::kMoved)
      waiter = Waiter(policy_, patience_.looks);
    else if (waiter.pause() && deadline.at() <= Clock::now())
      break;
  }
  lock.unlock();
  ProgressThread::instance().look_again();
  return true;
}

Status Channel::run(const Operation& operation) {
  if (!turns_.take(Turns::kCall)) {
    if (const Status may_not = check_may_wait(); !may_not.ok()) return may_not.with_context(where(operation.record));
    return start(operation)->wait();
  }
  Status status = run_owned(operation);
  give_back();
  return status;
}

Status Channel::run(const Call& call, const CallOptions& options) {
  if (!turns_.take(Turns::kCall)) {
    if (const Status may_not = check_may_wait(); !may_not.ok())
      return may_not.with_context(group_.where(name_of(call)));
    return group_.start(call, options).wait();
  }
  Status status = run_owned(call, options);
  give_back();
  return status;
}

Status Channel::run_owned(const Call& call, const CallOptions& options) {
  if (is_alike(call, last_call_.call)) [[likely]] {
    Operation& operation = last_call_.operation;
    operation.input = call.input.data;
    operation.output = call.output.data;
    operation.timeout = options.timeout.value_or(group_.options().timeout);
    return run_owned(operation);
  }
  ACCORD_RETURN_IF_ERROR(group_.check(call));
  return group_.with_operation(call, options, [&](const Operation& operation) {
    if (!is_alike(call, call)) return run_owned(operation);
    last_call_ = {.call = call, .operation = operation};
    return run_owned(last_call_.operation);
  });
}

std::shared_ptr<PendingWork> Channel::start(const Operation& operation) {
  Queued queued = enqueue(operation);
  if (queued.owned) begin_driving(operation);
  return std::move(queued.work);
}

Channel::Queued Channel::enqueue(const Operation& operation) {
  auto work = std::make_shared<PendingWork>(group_.handle(), this, operation);
  const std::lock_guard lock(mutex_);
  queue_.push_back(work);
  const Turns::Place place = turns_.queue();
  recorder_.queue(place.number, place.before, operation.record);
  return {std::move(work), place.before == 0};
}

Status Channel::run_owned(const Operation& operation) {
  const exec::RequestRecord& record = operation.record;
  ACCORD_RETURN_IF_ERROR(begin(operation));
  // What is quick is recorded once its own part is done, while the peers' is on its way.
  const std::size_t bytes = bytes_of(operation);
  bool recorded = recorder_.times(bytes) || stage_ != Stage::kData;
  if (recorded) recorder_.begin(number_, cursor_.plan().record, bytes, algorithm_);
  Waiter waiter(policy_, patience_.looks);
  std::uint64_t position = cursor_.position();
  std::optional<Deadline> deadline;  // set once the wait is slow, which spares quick calls a look at the clock
  while (true) {
    const exec::Progress progress = poll(patience_);
    if (!recorded) {
      recorder_.begin(number_, cursor_.plan().record, bytes, algorithm_);
      recorded = true;
    }
    if (progress == exec::Progress::kDone) [[likely]] {
      recorder_.end(true);
      return {};
    }
    recorder_.waiting();
    const bool mismatch = progress == exec::Progress::kMismatch;
    if (!mismatch && cursor_.position() != position) {
      position = cursor_.position();
      waiter = Waiter(policy_, patience_.looks);
      if (waited_long_) domain_.tell_waiting(-1, Clock::now());
    } else if (mismatch || waiter.pause()) {
      if (!deadline) deadline = Deadline::in(operation.timeout);
      if (const Status failure = examine(progress, record, *deadline); !failure.ok())
        if (std::optional<Status> end = conclude(failure)) {
          recorder_.end(end->ok());
          return *std::move(end);
        }
    }
  }
}

Status Channel::begin(const Operation& operation) {
  ++number_;
  if (!group_.healthy()) [[unlikely]] {
    if (!std::exchange(refused_one_, true)) {
      recorder_.refuse(number_, operation.record);
      group_.dump_again();
    }
    return group_.examine_alarm(where(operation.record));
  }
  operation_ = &operation;
  waited_long_ = false;
  if (operation.record.phase == exec::Phase::kCountsFirst) [[unlikely]]
    return begin_counts();
  if (group_.windows().version() != 0) [[unlikely]]
    return begin_in_windows(operation);
  return begin_data(operation.record, operation.extent,
                    &operation == &last_call_.operation ? last_call_.prepared : nullptr);
}

// Whether all ranks' buffers lie in windows is part of what they agree on, whichever plan serves them.
Status Channel::begin_in_windows(const Operation& operation) {
  WindowRegistry& windows = group_.windows();
  if (windows_ == nullptr || windows_->version != windows.version()) windows_ = windows.table();
  place_buffers(*windows_, operation, domain_, placement_);
  return begin_data(operation.record, operation.extent);
}

void Channel::forget_windows() {
  if (!turns_.take(Turns::kNoCall)) return;
  windows_ = nullptr;
  placement_ = {};
  give_back();
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
  // What peers still read must not be written before they have: where a plan wants input and output apart they read a copy.
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

exec::Progress Channel::poll(exec::Patience patience) {
  if (stage_ == Stage::kRefused) return exec::Progress::kMismatch;
  const exec::Progress progress = cursor_.poll(patience);
  if (progress != exec::Progress::kDone) return progress;
  if (stage_ == Stage::kCounts) return go_on_with_data();
  // Who has given up waits no longer until its memory has been read.
  if (cursor_.plan().reads && !group_.healthy()) {
    stage_ = Stage::kRefused;
    return exec::Progress::kMismatch;
  }
  return progress;
}

exec::Progress Channel::go_on_with_data() {
  const Result<std::size_t> longest = counts_.longest_part(*operation_, domain_.me());
  Status status = longest.status().with_context(where(operation_->record));
  if (longest.ok()) {
    exec::RequestRecord record = operation_->record;
    record.phase = exec::Phase::kUnequalParts;
    record.count = *longest;
    plan::Extent extent = *operation_->extent;
    extent.longest_part = *longest;
    status = begin_data(record, &extent);
    if (status.ok()) {
      recorder_.chose(algorithm_);
      return exec::Progress::kPending;
    }
  }
  (void)group_.fail(status);
  stage_ = Stage::kRefused;
  return exec::Progress::kMismatch;
}

Channel::Advance Channel::advance(Ended& ended, exec::Patience patience) {
  std::shared_ptr<PendingWork> work;
  {
    const std::lock_guard lock(mutex_);
    work = queue_.front();
  }
  const Operation& operation = work->operation();
  if (!front_started_) {
    if (Status status = begin(operation); !status.ok()) {
      recorder_.drop(number_);
      return end_front(std::move(status), ended);
    }
    recorder_.begin(number_, operation.record, bytes_of(operation), algorithm_);
    front_started_ = true;
    front_stuck_ = 0;
    front_position_ = cursor_.position();
  }
  const exec::Progress progress = poll(patience);
  if (progress == exec::Progress::kDone) {
    recorder_.end(true);
    return end_front({}, ended);
  }
  recorder_.waiting();
  if (progress == exec::Progress::kPending && cursor_.position() != front_position_) {
    front_position_ = cursor_.position();
    front_stuck_ = 0;
    if (waited_long_) domain_.tell_waiting(-1, Clock::now());
    return Advance::kMoved;
  }
  if (progress == exec::Progress::kMismatch || ++front_stuck_ % kLookEvery == 0) {
    const Status failure = examine(progress, operation.record, work->deadline());
    if (!failure.ok())
      if (std::optional<Status> end = conclude(failure)) {
        recorder_.end(end->ok());
        return end_front(*std::move(end), ended);
      }
  }
  return Advance::kStuck;
}

Channel::Advance Channel::end_front(Status status, Ended& ended) {
  front_started_ = false;
  ended.status = std::move(status);
  {
    const std::lock_guard lock(mutex_);
    ended.work = std::move(queue_.front());
    queue_.pop_front();
  }
  return turns_.next() ? Advance::kMoved : Advance::kIdle;
}

std::optional<Status> Channel::conclude(const Status& failure) {
  // A peer that left or died may have done its part before: what has arrived counts.
  const std::uint64_t position = cursor_.position();
  const int waited_for = cursor_.waiting_for();
  if (poll() == exec::Progress::kDone) return Status();
  const bool moved = cursor_.position() != position || cursor_.waiting_for() != waited_for;
  if (moved && group_.healthy()) return std::nullopt;
  return group_.fail(failure);
}

Status Channel::examine(exec::Progress progress, const exec::RequestRecord& record, Deadline deadline) {
  const Rank waited_for = rank_waited_for();
  recorder_.waiting_long(waited_for, !std::exchange(waited_long_, true));
  domain_.flush_notes();
  const Clock::time_point now = Clock::now();
  if (!cursor_.at_gate()) domain_.tell_waiting(cursor_.waiting_for(), now);
  if (!group_.healthy()) return group_.examine_alarm(where(record));
  if (progress == exec::Progress::kMismatch && cursor_.read_error() != 0)
    return unreadable(where(record), waited_for, cursor_.read_error());
  if (progress == exec::Progress::kMismatch && cursor_.unknown_window() >= 0)
    return lost_window(where(record), members_[domain_.me()], waited_for, cursor_.unknown_window());
  // A peer that waits for it at a gate finds out there what it called instead.
  domain_.tell_completed(domain_.round() - (cursor_.at_gate() || domain_.round() == 0 ? 0 : 1));
  ACCORD_RETURN_IF_ERROR(find_mismatch());
  if (progress == exec::Progress::kMismatch)
    return mismatch_long_ago(where(record), members_[domain_.me()], waited_for);
  if (waited_for >= 0 && group_.peer_state(waited_for) == transport::PeerState::kLeft)
    return Status(
        StatusCode::kPeerLost,
        fmt::format("{}: rank {} has closed its communicator and takes no more part", where(record), waited_for),
        {waited_for});
  if (deadline.at() <= now) return timed_out(where(record));
  const std::lock_guard lock(mutex_);
  for (const auto& work : queue_)
    if (work->deadline().at() <= now)
      return timed_out(fmt::format("{}, queued behind {}", where(work->operation().record), exec::to_string(record)));
  return {};
}

Status Channel::timed_out(std::string_view what) const {
  std::vector<Rank> missing;
  if (!cursor_.at_gate()) missing = ranks_not_in_round();
  // One that has come, and waits for another itself, is not who is late.
  const Clock::time_point since = Clock::now() - operation_->timeout / 2;
  if (const int member = cursor_.waiting_for(); missing.empty() && member >= 0)
    missing.push_back(members_[cursor_.at_gate() ? member : domain_.last_waited_for(member, since)]);
  return Status(
      StatusCode::kTimeout,
      fmt::format("{}: {} did not come in time; raise the timeout if it is only slow", what, ranks_text(missing)),
      missing);
}

Status Channel::find_mismatch() const {
  for (int m = 0; m < domain_.members(); ++m)
    if (const std::optional<Difference> found = find_difference(domain_, m))
      return mismatch(*found, where(found->mine), members_[domain_.me()], members_[m]);
  return {};
}

std::vector<Rank> Channel::ranks_not_in_round() const {
  std::vector<Rank> missing;
  for (int m = 0; m < domain_.members(); ++m) {
    std::uint64_t its_word = 0;
    exec::RequestRecord record;
    if (m != domain_.me() && !domain_.record_of(m, domain_.round(), &its_word, &record)) missing.push_back(members_[m]);
  }
  return missing;
}

Rank Channel::rank_waited_for() const {
  const int member = cursor_.waiting_for();
  return member < 0 ? -1 : members_[member];
}

std::string Channel::where(const exec::RequestRecord& record) const {
  if (record.collective != Collective::kSendRecv) return group_.where(exec::name_of(record));
  const bool sends = domain_.me() == 0;
  return group_.where(fmt::format("{} rank {}", sends ? "send to" : "recv from", members_[sends ? 1 : 0]));
}

}  // namespace accord::comm
