#include "comm/device/device_channel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/text.hpp"
#include "base/wait.hpp"
#include "comm/call.hpp"
#include "comm/device/device_backends.hpp"
#include "comm/device/device_watch.hpp"
#include "comm/group.hpp"

namespace accord::comm {
namespace {

Device device_of(const Call& call) {
  return call.input.device.type != DeviceType::kCpu ? call.input.device : call.output.device;
}

/// A message may still be on its way from a peer for which it is over, and which has left since.
constexpr std::chrono::seconds kGrace(1);
/// For a collective whose kernels may have met those of a graph of the peer's, which the peer's ledger does not
/// count.
constexpr std::chrono::milliseconds kGraceOfCollectives(200);
/// Calls in streams that are examined each time; later ones wait for these.
constexpr std::size_t kExamined = 64;

}  // namespace

DeviceChannel::DeviceChannel(Group& group) : group_(group) {}

// NOLINTNEXTLINE(bugprone-exception-escape): a lack of memory here ends the process
DeviceChannel::~DeviceChannel() { close(); }

std::string DeviceChannel::where(const UnderWay& one) const {
  return group_.where(one.text != nullptr ? one.text(one.record) : exec::to_string(one.record));
}

DeviceLedger* DeviceChannel::ledger_of(Rank rank) const { return ledgers_[static_cast<std::size_t>(rank)].get(); }

Status DeviceChannel::open(Device device) {
  if (backends_ != nullptr) {
    if (device == device_) return {};
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a buffer is on {}, but this rank's calls on the group are on {}", to_string(device),
                              to_string(device_)));
  }
  const Result<device::Runtime*> runtime = device::runtime_of(device.type);
  if (!runtime.ok()) return runtime.status().with_context(fmt::format("a buffer is on {}", to_string(device)));
  runtime_ = *runtime;
  if (device.index < 0 || device.index >= runtime_->count())
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a buffer is on {}, but this rank sees {} devices of that type", to_string(device),
                              runtime_->count()));
  ACCORD_ASSIGN_OR_RETURN(std::shared_ptr<StopWord> stop, StopWord::create(*runtime_, device));
  ACCORD_ASSIGN_OR_RETURN(stream_, runtime_->create_stream(device, group_.options().hints.is_high_priority_stream));
  device_ = device;
  events_ = std::make_shared<EventPool>(*runtime_, device_);
  {
    const std::lock_guard lock(under_way_mutex_);
    stop_ = std::move(stop);
    for (const Rank rank : group_.topology().ranks()) {
      const auto& link = group_.links()[static_cast<std::size_t>(rank)];
      std::byte* const window = link == nullptr ? group_.membership().endpoint->window().data() : link->mapped();
      ledgers_.push_back(window == nullptr ? nullptr : std::make_unique<DeviceLedger>(window));
    }
  }
  backends_ = std::make_unique<DeviceBackends>(group_, *runtime_, device_, stop_, lent_);
  return {};
}

Status DeviceChannel::prepare(std::span<const Call> calls, Deadline deadline) {
  if (closed_) return group_.state().status();
  for (const Call& call : calls) {
    const auto failed = [&](const Status& status) { return status.with_context(group_.where(name_of(call))); };
    if (!serves(call))
      return failed(Status(StatusCode::kUnsupported, "calls on a GPU and on the CPU cannot begin together"));
    if (Status opened = open(device_of(call)); !opened.ok()) return failed(opened);
    if (Status known = backends_->check(call); !known.ok()) return failed(known);
  }
  Status agreed = backends_->agree(calls, deadline);
  return agreed.ok() ? agreed : agreed.with_context(group_.where(name_of(calls.front())));
}

Status DeviceChannel::put(std::span<const Call> calls, Stream stream, Duration timeout,
                          const std::shared_ptr<PendingWork>& work, const exec::PlanEpilogue* epilogue) {
  UnderWay one{.record = record_of(calls.front(), group_.rank(), group_.size()),
               .deadline = Deadline::in(timeout),
               .work = work};
  if (!group_.state().healthy()) return group_.state().examine_alarm(where(one));
  ACCORD_ASSIGN_OR_RETURN(const bool captured, runtime_->is_capturing(device_, stream));
  if (captured && !backends_->can_capture(calls))
    return Status(StatusCode::kWrongState, fmt::format("{}: the first call of a group connects its ranks, which cannot "
                                                       "be captured; make a call before the capture",
                                                       where(one)));
  const auto enqueue = [&](UnderWay& it) {
    for (const Call& call : calls) {
      if (call.direction != Direction::kNone)
        it.peers.push_back(call.peer);
      else
        ACCORD_RETURN_IF_ERROR(note(backends_->announced(call), it));
    }
    Status put = backends_->enqueue(calls, epilogue, stream, it.deadline);
    Waiter waiter(WaitPolicy::kYield);
    while (!put.ok() && confirmed_failure(put).ok() && group_.state().healthy()) (void)waiter.pause();
    return put;
  };
  return put(std::move(one), stream, enqueue).status();
}

Result<std::shared_ptr<DeviceEvent>> DeviceChannel::put(UnderWay one, Stream stream,
                                                        const std::function<Status(UnderWay&)>& enqueue) {
  if (!group_.state().healthy()) return group_.state().examine_alarm(where(one));
  ACCORD_ASSIGN_OR_RETURN(const bool captured, runtime_->is_capturing(device_, stream));
  if (Status put = enqueue(one); !put.ok()) {
    const Status late = put.code() == StatusCode::kTimeout ? examine(one) : Status();
    Status failure = group_.state().fail(late.ranks().empty() ? put.with_context(where(one)) : late);
    abort_calls(failure);
    note_end(one.number);
    return failure;
  }
  has_graphs_ |= captured;
  Result<std::shared_ptr<DeviceEvent>> end = events_->record(stream);
  if (!end.ok()) {
    Status failure = group_.state().fail(end.status().with_context(where(one)));
    abort_calls(failure);
    note_end(one.number);
    return failure;
  }
  if (one.work != nullptr) one.work->set_mark(*end);
  if (captured) {
    note_end(one.number);  // launches cannot be tracked
  } else {
    one.end = *end;
    const std::lock_guard lock(under_way_mutex_);
    under_way_.push_back(std::move(one));
  }
  DeviceWatch::instance().watch(group_.shared_from_this(), *this);
  return captured ? nullptr : *std::move(end);
}

Result<std::shared_ptr<DeviceEvent>> DeviceChannel::run(const KernelCall& call, const std::function<Status()>& put) {
  const std::lock_guard lock(mutex_);
  if (closed_) return group_.state().status();
  ACCORD_RETURN_IF_ERROR(open(call.device));
  UnderWay one{.record = call.record,
               .deadline = Deadline::in(group_.options().timeout),
               .text = call.text,
               .alike = call.alike};
  return this->put(std::move(one), call.stream, [&](UnderWay& it) {
    ACCORD_RETURN_IF_ERROR(note(call.record, it));
    return put();
  });
}

Result<std::shared_ptr<StopWord>> DeviceChannel::stop_word(Device device) {
  const std::lock_guard lock(mutex_);
  if (closed_) return group_.state().status();
  ACCORD_RETURN_IF_ERROR(open(device));
  return stop_;
}

Result<Stream> DeviceChannel::stream_for(std::span<const Call> calls) {
  const Rank peer = calls.front().peer;
  const auto is_with_it = [peer](const Call& call) { return call.direction != Direction::kNone && call.peer == peer; };
  if (!std::all_of(calls.begin(), calls.end(), is_with_it)) return stream_;
  const auto found = message_streams_.find(peer);
  if (found != message_streams_.end()) return found->second;
  ACCORD_ASSIGN_OR_RETURN(const Stream made,
                          runtime_->create_stream(device_, group_.options().hints.is_high_priority_stream));
  return message_streams_.emplace(peer, made).first->second;
}

Status DeviceChannel::run(std::span<const Call> calls, const CallOptions& options, const exec::PlanEpilogue* epilogue) {
  const Duration timeout = options.timeout.value_or(group_.options().timeout);
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(prepare(calls, Deadline::in(timeout)));
  return put(calls, options.stream, timeout, nullptr, epilogue);
}

std::shared_ptr<PendingWork> DeviceChannel::start(std::span<const Call> calls, const CallOptions& options) {
  const Duration timeout = options.timeout.value_or(group_.options().timeout);
  const std::lock_guard lock(mutex_);
  if (Status status = prepare(calls, Deadline::in(timeout)); !status.ok()) return PendingWork::ended(std::move(status));
  const auto put_behind = [&](const std::shared_ptr<PendingWork>& work) -> Result<bool> {
    ACCORD_ASSIGN_OR_RETURN(const bool captured, runtime_->is_capturing(device_, options.stream));
    ACCORD_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceEvent> before, events_->record(options.stream));
    ACCORD_ASSIGN_OR_RETURN(const Stream stream, stream_for(calls));
    ACCORD_RETURN_IF_ERROR(before->block(stream));
    Status status = put(calls, stream, timeout, work);
    if (status.ok()) return captured;
    // Some of it may be in `stream`, and the caller may release its memory in the order of its own stream.
    if (const auto end = events_->record(stream); end.ok()) (void)(*end)->block(options.stream);
    return status;
  };
  const Operation operation{.record = record_of(calls.front(), group_.rank(), group_.size()), .timeout = timeout};
  auto work = std::make_shared<PendingWork>(group_.handle(), this, operation);
  const Result<bool> captured = put_behind(work);
  if (!captured.ok()) return PendingWork::ended(captured.status());
  if (*captured) work->finish({});  // there is nothing to wait for before the graph is launched
  return work;
}

Status DeviceChannel::examine(UnderWay& one) const {
  std::vector<Rank> missing;
  bool all_visible = true;
  for (const Rank rank : group_.topology().ranks()) {
    if (rank == group_.rank()) continue;
    const bool participates = one.number > 0 || std::find(one.peers.begin(), one.peers.end(), rank) != one.peers.end();
    if (!participates) continue;
    const DeviceLedger* const theirs = ledger_of(rank);
    const bool has_arrived = one.number > 0 && theirs != nullptr && theirs->count() >= one.number;
    const bool has_left = !has_arrived && (group_.state().peer(rank) == transport::PeerState::kLeft ||
                                           (one.number > 0 && theirs != nullptr && theirs->has_left()));
    if (has_left && !one.left_at) one.left_at = Clock::now();
    if (has_left && Clock::now() - *one.left_at > (one.number > 0 ? kGraceOfCollectives : kGrace))
      return Status(
          StatusCode::kPeerLost,
          fmt::format("{}: rank {} has closed its communicator and takes part in no further calls", where(one), rank),
          {rank});
    if (one.number == 0 || theirs == nullptr) {
      all_visible = false;
      continue;
    }
    if (!has_arrived) missing.push_back(rank);
    const auto mine = ledger_of(group_.rank())->record_of(one.number), its = theirs->record_of(one.number);
    if (!mine || !its || mine == its) continue;
    if (one.text == nullptr)
      return mismatch({.mine = *mine, .theirs = *its}, group_.where(exec::to_string(*mine)), group_.rank(), rank);
    if (one.alike(*mine, *its)) continue;
    return Status(StatusCode::kMismatch,
                  fmt::format("{}: rank {} called {}, rank {} called {}", where(one), rank, one.text(*its),
                              group_.rank(), one.text(*mine)),
                  {rank});
  }
  if (!one.deadline.passed()) return {};
  if (missing.empty() && one.number == 0) missing = one.peers;
  const std::string who = !missing.empty() ? fmt::format("{} did not arrive in time", ranks_text(missing))
                          : all_visible    ? std::string("all ranks have arrived, but it did not end in time")
                                           : std::string("it did not end in time");
  return Status(StatusCode::kTimeout, fmt::format("{}: {}; raise the timeout if it is only slow", where(one), who),
                missing);
}

Status DeviceChannel::find_late() {
  std::string first;
  Status failure;
  {
    const std::lock_guard lock(under_way_mutex_);
    if (under_way_.empty()) return {};
    first = where(under_way_.front());
    std::size_t left = kExamined;
    for (auto one = under_way_.begin(); one != under_way_.end() && left > 0 && failure.ok(); ++one, --left)
      failure = examine(*one);
  }
  if (!group_.state().healthy()) return group_.state().examine_alarm(first);
  return failure.ok() ? failure : group_.state().fail(failure);
}

Status DeviceChannel::find_failure() {
  std::string first = group_.where("graphs of calls");
  {
    const std::lock_guard lock(under_way_mutex_);
    if (under_way_.empty() && !has_graphs_) return {};
    if (!under_way_.empty()) first = where(under_way_.front());
  }
  // Queried first: by the time find_late() runs, it can see what is wrong with the calls, which says more than this
  // error.
  const Status status = confirmed_failure(backends_->asynchronous_error());
  if (Status late = find_late(); !late.ok()) return late;
  if (!group_.state().healthy()) return group_.state().examine_alarm(first);
  return status.ok() ? status : group_.state().fail(status.with_context(first));
}

Status DeviceChannel::confirmed_failure(const Status& status) {
  if (status.code() != StatusCode::kPeerLost || !status.ranks().empty()) return status;
  if (!lost_since_) lost_since_ = Clock::now();
  return Clock::now() - *lost_since_ > kGrace ? status : Status();
}

bool DeviceChannel::poll() {
  if (is_calling()) {
    // The calling thread may be in a device call that waits for kernels, which wait for peers. The kernels are made
    // to end before the device is queried.
    if (const Status late = find_late(); !late.ok()) end_kernels(late);
    (void)end_works(Ending::kOver);
    return true;
  }
  Status failure = end_works(Ending::kOver);
  bool has_graphs = false;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return true;
    if (closed_ || backends_ == nullptr) return false;
    failure = failure.ok() ? find_failure() : group_.state().fail(failure);
    if (!failure.ok()) abort_calls(failure);
    has_graphs = has_graphs_;
  }
  if (!failure.ok()) (void)end_works(Ending::kFailed);
  return has_graphs || is_any_under_way() || is_any_ending();
}

bool DeviceChannel::is_calling() { return !std::unique_lock(mutex_, std::try_to_lock).owns_lock(); }

bool DeviceChannel::is_any_under_way() {
  const std::lock_guard lock(under_way_mutex_);
  return !under_way_.empty();
}

bool DeviceChannel::is_busy() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return !lock.owns_lock() || has_graphs_ || is_any_under_way() || is_any_ending();
}

bool DeviceChannel::drive_until_ended(const PendingWork& work, Deadline deadline) {
  Waiter waiter(WaitPolicy::kSpinBriefly);
  while (!work.done() && !deadline.passed()) {
    (void)poll();
    if (!work.done()) (void)waiter.pause();
  }
  return true;
}

void DeviceChannel::wait_until_idle() {
  const auto is_any_left = [this] {
    const std::lock_guard nobody_connects(mutex_);
    return is_any_under_way();
  };
  Waiter waiter(WaitPolicy::kYield);
  while (poll() && is_any_left()) (void)waiter.pause();
}

void DeviceChannel::close() {
  (void)quiesce_peers();
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true) || backends_ == nullptr) return;
    if (group_.state().has_failed()) abort_calls(group_.state().status());
    stop_->set();
    has_graphs_ = false;
    backends_.reset();
    events_.reset();
    (void)runtime_->destroy_stream(device_, stream_);
    for (const auto& [peer, stream] : message_streams_) (void)runtime_->destroy_stream(device_, stream);
    const std::lock_guard child_lock(under_way_mutex_);
    ledgers_.clear();
  }
  (void)end_works(Ending::kOver);
  {
    const std::lock_guard lock(under_way_mutex_);
    if (failure_.ok()) failure_ = group_.state().status();
  }
  (void)end_works(Ending::kAll);
  const std::lock_guard lock(under_way_mutex_);
  ending_.clear();
}

}  // namespace accord::comm
