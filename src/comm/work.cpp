// A waiting thread drives the channel itself, in place of the progress thread, which then need not be woken and needs
// no core. If another thread drives the channel, the waiting thread polls for a moment, since most works end soon,
// and then sleeps.
#include "accord/work.hpp"

#include <algorithm>
#include <thread>

#include "base/wait.hpp"
#include "comm/channel/channel.hpp"
#include "comm/group.hpp"
#include "comm/pending_work.hpp"

namespace accord {
namespace comm {
namespace {
constexpr int kPolls = 200;
/// A sleeping thread checks at this interval whether it may drive.
constexpr std::chrono::milliseconds kSleep(2);
thread_local bool calls_callbacks = false;
}  // namespace

Status check_may_wait() {
  if (!calls_callbacks) [[likely]]
    return {};
  return Status(StatusCode::kWrongState,
                "a callback of a Work must not wait for other operations, which make no progress until it returns; "
                "start one and give it a callback of its own");
}

OwnedOperation::OwnedOperation(const Operation& operation) : operation_(operation) {
  if (operation.extent == nullptr) return;
  extent_ = *operation.extent;
  counts_.reserve(extent_.input_parts.size() + extent_.output_parts.size());
  for (auto* parts : {&extent_.input_parts, &extent_.output_parts}) {
    const std::size_t first = counts_.size();
    counts_.insert(counts_.end(), parts->begin(), parts->end());
    *parts = std::span(counts_).subspan(first);
  }
  operation_.extent = &extent_;
}

PendingWork::Callbacks PendingWork::end(Status status) {
  // Releases the group before anyone is notified: a thread that releases its communicator after that holds the last
  // handle, and closes the group at once.
  {
    std::shared_ptr<Group> group;
    const std::lock_guard lock(mutex_);
    group.swap(group_);
  }
  Callbacks callbacks;
  const std::lock_guard lock(mutex_);
  status_ = std::move(status);
  done_.store(true, std::memory_order_release);
  callbacks.swap(callbacks_);
  ended_.notify_all();
  return callbacks;
}

void PendingWork::call_back(const Callbacks& callbacks) const {
  if (callbacks.empty()) return;
  const bool outer = std::exchange(calls_callbacks, true);
  for (const auto& callback : callbacks) callback(status_);
  calls_callbacks = outer;
}

void PendingWork::on_end(std::function<void(const Status&)> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!done()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(status_);
}

std::shared_ptr<PendingWork> PendingWork::ended(Status status) {
  auto work = std::make_shared<PendingWork>(nullptr, nullptr, Operation{});
  work->finish(std::move(status));
  return work;
}

std::shared_ptr<PendingWork> PendingWork::all(std::vector<std::shared_ptr<PendingWork>> works) {
  auto whole = std::make_shared<PendingWork>(nullptr, nullptr, Operation{});
  whole->parts_ = std::move(works);
  // One more for this function, so that the work ends after the last callback has been set.
  auto left = std::make_shared<std::atomic<std::size_t>>(whole->parts_.size() + 1);
  const auto one_ended = [whole, left](const Status&) {
    if (left->fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    Status first;
    for (const auto& work : whole->parts_)
      if (first.ok()) first = work->status();
    whole->finish(std::move(first));
  };
  for (const auto& work : whole->parts_) work->on_end(one_ended);
  one_ended({});
  return whole;
}

std::shared_ptr<Group> PendingWork::group() {
  const std::lock_guard lock(mutex_);
  return group_ == nullptr ? nullptr : group_->shared_from_this();
}

bool PendingWork::test() {
  if (done()) return true;
  for (const auto& part : parts_) (void)part->test();
  if (mark_ == nullptr) return done();                // works on the CPU end by themselves
  if (const std::shared_ptr<Group> kept = group()) {  // the driver is part of it
    driver_->end_completed();
  } else {  // another thread is between the two halves of end()
    while (!done()) std::this_thread::yield();
  }
  return done();
}

void PendingWork::help(Deadline deadline) {
  for (const auto& part : parts_) part->help(deadline);
  if (done() || driver_ == nullptr) return;
  const std::shared_ptr<Group> kept = group();
  if (kept == nullptr) return;
  for (int poll = 0; poll < kPolls && !done(); ++poll) {
    if (driver_->drive_until_ended(*this, deadline) && deadline.at() <= Clock::now()) return;
    cpu_relax();
  }
}

Status PendingWork::wait() {
  if (done()) return status_;
  ACCORD_RETURN_IF_ERROR(check_may_wait());
  return *wait_until(Deadline::in(Duration::max()));
}

Status PendingWork::block(Stream stream) {
  if (parts_.empty() && mark_ == nullptr) return wait();
  Status status = mark_ == nullptr ? Status() : mark_->block(stream);
  for (const auto& part : parts_) {  // after a failure of one, `stream` still waits for the kernels of the others
    Status of_part = part->block(stream);
    if (status.ok()) status = std::move(of_part);
  }
  if (status.ok() && done()) return status_;
  return status;
}

std::optional<Status> PendingWork::wait_until(Deadline deadline) {
  while (!done()) {
    if (Status status = check_may_wait(); !status.ok()) return status;
    help(deadline);
    std::unique_lock lock(mutex_);
    const Clock::time_point now = Clock::now();
    if (ended_.wait_until(lock, std::min(deadline.at(), now + kSleep), [this] { return done(); })) break;
    if (deadline.at() <= now) return std::nullopt;
  }
  return status_;
}

}  // namespace comm

Work::Work(Status status) : pending_(comm::PendingWork::ended(std::move(status))) {}

Work::Work(std::shared_ptr<comm::PendingWork> pending) : pending_(std::move(pending)) {}

std::optional<Status> Work::status() const {
  if (!pending_->test()) return std::nullopt;
  return pending_->status();
}

void Work::on_end(std::function<void(const Status&)> callback) { pending_->on_end(std::move(callback)); }

bool Work::test() const { return pending_->test(); }

Status Work::wait() { return pending_->wait(); }

Status Work::block(Stream stream) { return pending_->block(stream); }

std::optional<Status> Work::wait_for(Duration timeout) { return pending_->wait_until(Deadline::in(timeout)); }

}  // namespace accord
