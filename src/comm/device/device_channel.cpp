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

}  // namespace

DeviceChannel::DeviceChannel(Group& group) : group_(group) {}

// NOLINTNEXTLINE(bugprone-exception-escape): a lack of memory here ends the process
DeviceChannel::~DeviceChannel() { close(); }

std::string DeviceChannel::where(const UnderWay& one) const {
  return group_.where(one.text != nullptr ? one.text(one.record) : exec::to_string(one.record));
}

DeviceLedger* DeviceChannel::ledger_of(Rank rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return index < ledgers_.size() ? ledgers_[index].get() : nullptr;
}

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
  set_backends(std::make_unique<DeviceBackends>(group_, *runtime_, device_, stop_, lent_));
  return {};
}

class DeviceChannel::Calling {
 public:
  Calling(DeviceChannel& channel, UnderWay& one) : channel_(channel) { set(&one); }
  ~Calling() { set(nullptr); }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;

 private:
  void set(UnderWay* one) {
    const std::lock_guard lock(channel_.under_way_mutex_);
    channel_.calling_ = one;
  }
  DeviceChannel& channel_;
};

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
  if (captured) backends_->note_capture(calls);
  const auto enqueue = [&](UnderWay& it) {
    for (const Call& call : calls) {
      if (call.direction != Direction::kNone)
        it.peers.push_back(call.peer);
      else
        ACCORD_RETURN_IF_ERROR(note(backends_->announced(call), captured ? std::nullopt : std::optional(stream), it));
    }
    const Calling calling(*this, it);
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
  const auto failed = [&](const Status& why) {
    Status failure = group_.state().fail(why);
    // A part of it may be in the stream, and the backends wait for that.
    if (const auto end = events_->record(stream); !captured && end.ok()) backends_->set_end(*end);
    abort_calls(failure);
    return failure;
  };
  DeviceWatch::instance().watch(group_.shared_from_this(), *this);  // also while `enqueue` blocks
  if (Status put = enqueue(one); !put.ok()) {
    const Status late = put.code() == StatusCode::kTimeout ? examine(one) : Status();
    return failed(late.ranks().empty() ? put.with_context(where(one)) : late);
  }
  if (captured) has_graphs_ = true;
  Result<std::shared_ptr<DeviceEvent>> end = events_->record(stream);
  if (!end.ok()) return failed(end.status().with_context(where(one)));
  if (one.work != nullptr) one.work->set_mark(*end);
  if (!captured) {  // launches of graphs cannot be tracked
    backends_->set_end(*end);
    one.end = *end;
    const std::lock_guard lock(under_way_mutex_);
    under_way_.push_back(std::move(one));
  }
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
  return this->put(std::move(one), call.stream, [&](UnderWay& it) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const bool captured, runtime_->is_capturing(device_, call.stream));
    ACCORD_RETURN_IF_ERROR(note(call.record, captured ? std::nullopt : std::optional(call.stream), it));
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
    ACCORD_ASSIGN_OR_RETURN(const bool is_in_capture, runtime_->is_capturing(device_, stream));
    if (is_in_capture && !captured)  // the wait would invalidate the capture
      return Status(StatusCode::kWrongState,
                    fmt::format("{}: a call started during a capture holds the stream of started calls until the "
                                "capture ends; start this one after that, or run it in a stream of its own",
                                group_.where(name_of(calls.front()))));
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

void DeviceChannel::set_backends(std::unique_ptr<DeviceBackends> backends) {
  const std::lock_guard lock(abort_mutex_);
  backends_.swap(backends);
}

void DeviceChannel::close() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true) || backends_ == nullptr) return;
    // From here on a rank that calls finds that this one has left.
    ledger_of(group_.rank())->leave();
    if (group_.state().has_failed()) abort_calls(group_.state().status());
    stop_->set();
    has_graphs_ = false;
    set_backends(nullptr);
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
}

}  // namespace accord::comm
