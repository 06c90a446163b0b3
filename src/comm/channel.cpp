// Who moves `works_` from 0 to 1 owns the channel and may run; whoever else comes queues up and the progress thread
// takes over when the owner is done. So a call that meets an idle channel costs two atomic operations, no lock and no
// allocation once its plan is prepared, and calls run in the order in which they were made.
#include "comm/channel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.hpp"
#include "comm/explain.hpp"
#include "comm/group.hpp"
#include "comm/mismatch.hpp"
#include "comm/progress.hpp"
#include "exec/remote_steps.hpp"
#include "plan/registry.hpp"

namespace accord::comm {
namespace {

/// The progress thread polls a stuck operation this often between two looks for failures.
constexpr std::uint32_t kLookEvery = 256;

std::size_t bytes_of(const exec::RequestRecord& record) { return record.count * size_of(record.dtype); }

/// What the operation counts as: a buffer or one part of it, or where parts differ what this rank has of them.
std::size_t bytes_of(const Operation& operation) {
  if (operation.extent == nullptr) return bytes_of(operation.record);
  const plan::Extent& extent = *operation.extent;
  return std::max(extent.input_count, extent.output_count) * size_of(operation.record.dtype);
}

/// All that lowering makes of an extent but the longest part, which the record has.
std::vector<std::size_t> words_of(const plan::Extent& extent) {
  std::vector<std::size_t> words = {extent.input_count, extent.output_count};
  words.insert(words.end(), extent.input_parts.begin(), extent.input_parts.end());
  words.insert(words.end(), extent.output_parts.begin(), extent.output_parts.end());
  return words;
}

bool is_of(std::span<const std::size_t> words, const plan::Extent& extent) {
  const std::size_t parts = extent.input_parts.size() + extent.output_parts.size();
  if (words.size() != 2 + parts || words[0] != extent.input_count || words[1] != extent.output_count) return false;
  const auto rest = words.subspan(2);
  return std::equal(extent.input_parts.begin(), extent.input_parts.end(), rest.begin()) &&
         std::equal(extent.output_parts.begin(), extent.output_parts.end(), rest.begin() + extent.input_parts.size());
}

std::uint64_t hash_of(const plan::Extent& extent) {
  std::uint64_t hash = extent.input_count ^ (extent.output_count << 32);
  for (const std::span<const std::size_t> parts : {extent.input_parts, extent.output_parts})
    for (const std::size_t part : parts) hash = (hash ^ part) * 0x9e3779b97f4a7c15;
  return hash;
}

}  // namespace

Channel::Channel(Group& group, exec::Domain domain, topology::Topology topology, std::vector<Rank> members,
                 flight::OrderRecorder recorder)
    : group_(group),
      domain_(std::move(domain)),
      topology_(std::move(topology)),
      members_(std::move(members)),
      policy_(group.wait_policy()),
      recorder_(recorder) {}

Status Channel::run(const Operation& operation) {
  std::uint64_t works = works_.load(std::memory_order_relaxed);
  do {
    if (pending(works) != 0) {
      ACCORD_RETURN_IF_ERROR(check_may_wait());
      return start(operation)->wait();
    }
  } while (!works_.compare_exchange_weak(works, works + kOneCall, std::memory_order_seq_cst));
  Status status = run_owned(operation);
  if (pending(works_.fetch_sub(1, std::memory_order_acq_rel)) > 1)
    ProgressThread::instance().activate(group_.shared_from_this(), *this);
  return status;
}

std::shared_ptr<PendingWork> Channel::start(const Operation& operation) {
  Queued queued = enqueue(operation);
  if (queued.owned) ProgressThread::instance().activate(group_.shared_from_this(), *this);
  return std::move(queued.work);
}

Channel::Queued Channel::enqueue(const Operation& operation) {
  auto work = std::make_shared<PendingWork>(group_.handle(), operation);
  const std::lock_guard lock(mutex_);
  queue_.push_back(work);
  const std::uint64_t works = works_.fetch_add(kOneCall, std::memory_order_seq_cst);
  recorder_.queue((works >> kPendingBits) + 1, pending(works), operation.record);
  return {std::move(work), pending(works) == 0};
}

Status Channel::run_owned(const Operation& operation) {
  const exec::RequestRecord& record = operation.record;
  ACCORD_RETURN_IF_ERROR(begin(operation));
  // What is quick is recorded once its own part is done, while the peers' is on its way.
  const std::size_t bytes = bytes_of(operation);
  bool recorded = recorder_.times(bytes) || stage_ != Stage::kData;
  if (recorded) recorder_.begin(number_, cursor_.plan().record, bytes, algorithm_);
  Waiter waiter(policy_);
  std::uint64_t position = cursor_.position();
  std::optional<Deadline> deadline;  // set once the wait is slow, which spares quick calls a look at the clock
  while (true) {
    const exec::Progress progress = poll();
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
      waiter = Waiter(policy_);
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
  return begin_data(operation.record, operation.extent);
}

Status Channel::begin_counts() {
  counts_.begin(*operation_, domain_.members());
  ACCORD_ASSIGN_OR_RETURN(const Prepared* const prepared, prepare(operation_->record, nullptr));
  cursor_.start(domain_, prepared->plan, counts_.input(), counts_.output());
  algorithm_ = prepared->algorithm;
  stage_ = Stage::kCounts;
  return {};
}

Status Channel::begin_data(const exec::RequestRecord& record, const plan::Extent* extent) {
  const Prepared* prepared = slot_of(record, extent).get();
  if (!serves(prepared, record, extent)) [[unlikely]] {
    ACCORD_ASSIGN_OR_RETURN(prepared, prepare(record, extent));
  }
  cursor_.start(domain_, prepared->plan, operation_->input, operation_->output, operation_->factor);
  algorithm_ = prepared->algorithm;
  stage_ = Stage::kData;
  return {};
}

exec::Progress Channel::poll() {
  if (stage_ == Stage::kRefused) return exec::Progress::kMismatch;
  const exec::Progress progress = cursor_.poll();
  return progress == exec::Progress::kDone && stage_ == Stage::kCounts ? go_on_with_data() : progress;
}

exec::Progress Channel::go_on_with_data() {
  const Result<std::size_t> longest = counts_.longest_part(*operation_, domain_.me());
  Status status = longest.status();
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
  (void)group_.fail(status.with_context(where(operation_->record)));
  stage_ = Stage::kRefused;
  return exec::Progress::kMismatch;
}

std::unique_ptr<Channel::Prepared>& Channel::slot_of(const exec::RequestRecord& record, const plan::Extent* extent) {
  // Field by field, as the caller has just stored them: a wider load would have to wait until those stores, and whatever the
  // last call stored for its peers, have left the core.
  std::uint64_t hash = static_cast<std::uint64_t>(record.collective);
  for (const std::uint64_t field : {static_cast<std::uint64_t>(record.dtype), static_cast<std::uint64_t>(record.op),
                                    static_cast<std::uint64_t>(record.phase), static_cast<std::uint64_t>(record.root)})
    hash = hash * 31 + field;
  hash = (hash ^ (record.count * 0x9e3779b97f4a7c15)) * 0xff51afd7ed558ccd;
  return prepared_[((hash ^ (extent == nullptr ? 0 : hash_of(*extent))) >> 32) % kPrepared];
}

bool Channel::serves(const Prepared* prepared, const exec::RequestRecord& record, const plan::Extent* extent) const {
  return prepared != nullptr && prepared->plan.record == record &&
         (extent == nullptr || is_of(prepared->extent, *extent)) && prepared_version_ == plan::registry_version();
}

Result<const Channel::Prepared*> Channel::prepare(const exec::RequestRecord& record, const plan::Extent* extent) {
  std::unique_ptr<Prepared>& slot = slot_of(record, extent);
  if (serves(slot.get(), record, extent)) return slot.get();
  if (const std::uint64_t version = plan::registry_version(); prepared_version_ != version) {
    prepared_ = {};
    prepared_version_ = version;
  }
  ACCORD_ASSIGN_OR_RETURN(Prepared lowered, lower(record, extent));
  slot = std::make_unique<Prepared>(std::move(lowered));
  return slot.get();
}

Result<Channel::Prepared> Channel::lower(const exec::RequestRecord& record, const plan::Extent* extent) {
  const bool counts = record.phase == exec::Phase::kCountsFirst;
  const Collective collective = counts ? Collective::kAllGather : record.collective;
  const Rank root = counts ? 0 : record.root;
  const std::size_t bytes = counts ? counts_.count() * sizeof(std::uint64_t) : bytes_of(record);
  ACCORD_ASSIGN_OR_RETURN(const plan::Choice choice,
                          group_.selector().choose({collective, bytes, root, record.op}, topology_));
  const std::size_t known = plans_.size();
  ACCORD_ASSIGN_OR_RETURN(const plan::Plan* const plan, plan_for(*choice.algorithm, root));
  exec::Payload payload{counts ? DType::kUInt64 : record.dtype, {}};
  const std::size_t element = size_of(payload.dtype);
  payload.bounds = extent != nullptr ? plan::bounds_of(*plan, *extent, element)
                                     : plan::bounds_of(*plan, counts ? counts_.count() : record.count, element);
  const std::size_t slot_bytes = choice.slot_bytes == 0 ? domain_.layout().slot_bytes : choice.slot_bytes;
  ACCORD_ASSIGN_OR_RETURN(exec::LoweredPlan lowered,
                          exec::lower(*plan, domain_.me(), domain_.layout(), slot_bytes, record, std::move(payload)));
  ACCORD_RETURN_IF_ERROR(exec::route_remote_steps(lowered, domain_, plan->name));
  if (plans_.size() > known && domain_.me() == 0 && explains())
    explain(describe_choice(group_.options().name, plan->name, lowered));
  return Prepared{.plan = std::move(lowered),
                  .extent = extent == nullptr ? std::vector<std::size_t>() : words_of(*extent),
                  .algorithm = group_.recorder().algorithm(plan->name)};
}

Result<const plan::Plan*> Channel::plan_for(const plan::AlgorithmEntry& algorithm, Rank root) {
  for (const auto& plan : plans_)
    if (plan->collective == algorithm.collective && plan->name == algorithm.name && plan->root == root)
      return plan.get();
  const plan::Request request{.collective = algorithm.collective, .root = root, .only_rank = domain_.me()};
  ACCORD_ASSIGN_OR_RETURN(plan::Plan plan, plan::make_plan(algorithm, topology_, request));
  plans_.push_back(std::make_unique<plan::Plan>(std::move(plan)));
  return plans_.back().get();
}

Channel::Advance Channel::advance() {
  std::shared_ptr<PendingWork> work;
  {
    const std::lock_guard lock(mutex_);
    work = queue_.front();
  }
  const Operation& operation = work->operation();
  if (!front_started_) {
    if (Status status = begin(operation); !status.ok()) {
      recorder_.drop(number_);
      return end_front(std::move(status));
    }
    recorder_.begin(number_, operation.record, bytes_of(operation), algorithm_);
    front_started_ = true;
    front_stuck_ = 0;
    front_position_ = cursor_.position();
  }
  const exec::Progress progress = poll();
  if (progress == exec::Progress::kDone) {
    recorder_.end(true);
    return end_front({});
  }
  recorder_.waiting();
  if (progress == exec::Progress::kPending && cursor_.position() != front_position_) {
    front_position_ = cursor_.position();
    front_stuck_ = 0;
    return Advance::kMoved;
  }
  if (progress == exec::Progress::kMismatch || ++front_stuck_ % kLookEvery == 0) {
    const Status failure = examine(progress, operation.record, work->deadline());
    if (!failure.ok())
      if (std::optional<Status> end = conclude(failure)) {
        recorder_.end(end->ok());
        return end_front(*std::move(end));
      }
  }
  return Advance::kStuck;
}

Channel::Advance Channel::end_front(Status status) {
  std::shared_ptr<PendingWork> work;
  front_started_ = false;
  {
    const std::lock_guard lock(mutex_);
    work = std::move(queue_.front());
    queue_.pop_front();
  }
  const bool last = pending(works_.fetch_sub(1, std::memory_order_acq_rel)) == 1;
  work->finish(std::move(status));
  return last ? Advance::kIdle : Advance::kMoved;
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
  if (!group_.healthy()) return group_.examine_alarm(where(record));
  ACCORD_RETURN_IF_ERROR(find_mismatch());
  if (progress == exec::Progress::kMismatch)
    return mismatch_long_ago(where(record), members_[domain_.me()], waited_for);
  if (waited_for >= 0 && group_.peer_state(waited_for) == transport::PeerState::kLeft)
    return Status(
        StatusCode::kPeerLost,
        fmt::format("{}: rank {} has closed its communicator and takes no more part", where(record), waited_for),
        {waited_for});
  const auto now = Clock::now();
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
  if (const Rank waited_for = rank_waited_for(); missing.empty() && waited_for >= 0) missing.push_back(waited_for);
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
