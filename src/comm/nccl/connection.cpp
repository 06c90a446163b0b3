// NCCL has two kinds of communicators. Calls on a blocking one return when they are done. Each call on another one
// starts a thread, which costs more than launching the kernel, and is over once ncclCommGetAsyncError() says so. accord
// creates blocking ones. It serves both kinds, because a borrowed one may be of either, and because the variable
// NCCL_COMM_BLOCKING overrides what accord asks for.
//
// A blocked call returns early only if another thread sets NCCL's abort flags. ncclCommRevoke() (2.28) does that and
// keeps the communicator. ncclCommAbort() frees it soon after, so it must come last: end() waits for the thread in the
// call, revokes the communicator if that thread does not leave, and aborts it when the thread has left. Older versions
// have only ncclCommAbort() for a thread that does not leave, and so has a communicator that is still connecting. In a
// group, ncclCommAbort() sets the flags at once and frees the communicator at the end of the group: abort() ends the
// group when the thread has left.
#include "comm/nccl/connection.hpp"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "base/log.hpp"
#include "base/wait.hpp"
#include "comm/nccl/call_threads.hpp"

namespace accord::comm::nccl {
namespace {

/// Between looks of a thread that waits.
constexpr std::chrono::milliseconds kLook(1);
/// For a thread in a call to leave it by itself, before the communicator is revoked, or aborted if it cannot be.
constexpr std::chrono::milliseconds kGraceBeforeRevoke(100);
constexpr std::chrono::milliseconds kGraceBeforeAbort(500);
/// For a revocation in the background to end.
constexpr std::chrono::seconds kRevokeTimeout(2);
/// For ncclCommDestroy() to return after an abort.
constexpr std::chrono::seconds kDestroyTimeout(1);

Status aborted(std::string_view function) {
  return Status(StatusCode::kAborted, fmt::format("nccl{} was aborted", function));
}

}  // namespace

Connection::Connection(const Place& place, Communicator* communicator)
    : place_(place),
      is_borrowed_(communicator != nullptr),
      handle_(communicator),
      state_(communicator != nullptr ? State::kReady : State::kNew) {}

std::shared_ptr<Connection> Connection::create(const Place& place) {
  return std::shared_ptr<Connection>(new Connection(place, nullptr));
}

std::shared_ptr<Connection> Connection::borrow(const Place& place, Communicator* communicator) {
  return std::shared_ptr<Connection>(new Connection(place, communicator));
}

Communicator* Connection::handle() { return std::atomic_ref(handle_).load(std::memory_order_acquire); }

bool Connection::allows(Purpose purpose, State state) {
  switch (purpose) {
    case Purpose::kConnecting: return state == State::kNew;
    case Purpose::kCalling: return state == State::kReady;
    case Purpose::kShrinking: return state == State::kReady || state == State::kRevoked;
  }
  return false;
}

Status Connection::enter(Purpose purpose, std::string_view function, const WaitCheck& check) {
  std::unique_lock lock(mutex_);
  while (is_in_call_ && allows(purpose, state_)) {
    (void)changed_.wait_for(lock, kLook);
    lock.unlock();
    ACCORD_RETURN_IF_ERROR(check(function));
    lock.lock();
  }
  if (!allows(purpose, state_)) return aborted(function);
  is_in_call_ = true;
  return {};
}

void Connection::leave() {
  {
    const std::lock_guard lock(mutex_);
    is_in_call_ = false;
  }
  changed_.notify_all();
}

std::shared_ptr<Connection::Apart> Connection::begin_apart(std::string_view function,
                                                           std::vector<std::shared_ptr<Connection>> entered,
                                                           std::function<int()> call) {
  auto apart = std::make_shared<Apart>();
  apart->function = function;
  apart->call = std::move(call);
  apart->entered = std::move(entered);
  Status started = run_in_thread([self = shared_from_this(), apart] {
    const device::CurrentDevice current(self->place_.runtime, self->place_.device);
    int code = kSuccess;
    Status status = current.status();
    if (status.ok()) code = apart->call();
    if (code != kSuccess && code != kInProgress) status = self->place_.library.failure(apart->function, code);
    bool leaves = true;
    {
      const std::lock_guard lock(self->mutex_);
      apart->is_over = true;
      apart->code = code;
      apart->status = std::move(status);
      leaves = code != kInProgress || apart->is_abandoned;
      if (code == kInProgress) self->kept_.push_back(apart);
    }
    self->changed_.notify_all();
    if (!leaves) return;  // the waiting thread does, when the call is no longer in progress
    for (const auto& one : apart->entered) one->leave();
  });
  if (started.ok()) return apart;
  {
    const std::lock_guard lock(mutex_);
    apart->is_over = true;
    apart->status = std::move(started);
  }
  for (const auto& one : apart->entered) one->leave();
  return apart;
}

Status Connection::finish_apart(const std::shared_ptr<Apart>& apart, const WaitCheck& check) {
  std::unique_lock lock(mutex_);
  while (!apart->is_over) {
    (void)changed_.wait_for(lock, kLook);
    lock.unlock();
    Status why = check(apart->function);
    lock.lock();
    if (why.ok() || apart->is_over) continue;
    apart->is_abandoned = true;
    return why;
  }
  lock.unlock();
  if (apart->code != kInProgress) return apart->status;
  Status status;
  for (const auto& one : apart->entered)
    if (status.ok() && one->handle() != nullptr) status = one->await_idle(apart->function, check);
  for (const auto& one : apart->entered) one->leave();
  if (!status.ok()) return status;
  lock.lock();
  std::erase(kept_, apart);
  return status;
}

Status Connection::await_idle(std::string_view function, const WaitCheck& check) {
  Waiter waiter(WaitPolicy::kYield);
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (state_ == State::kEnding || state_ == State::kEnded) return aborted(function);
    }
    int code = kSuccess;
    if (const int asked = nccl().CommGetAsyncError(handle(), &code); asked != kSuccess) code = asked;
    if (code == kSuccess) return {};
    if (code != kInProgress) return place_.library.failure(function, code);
    if (waiter.pause()) ACCORD_RETURN_IF_ERROR(check(function));
  }
}

void Connection::begin_connecting(const UniqueId& id, Rank rank, int size, const Settings& settings) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kNew) return;
    is_in_call_ = true;
  }
  const auto call = [self = shared_from_this(), id, rank, size, settings] {
    Config config = settings.config();
    return self->nccl().CommInitRankConfig(&self->handle_, size, id, rank, &config);
  };
  connecting_ = begin_apart("CommInitRankConfig", {shared_from_this()}, call);
}

Status Connection::finish_connecting(const WaitCheck& check) {
  Status status = connecting_ == nullptr ? aborted("CommInitRankConfig") : finish_apart(connecting_, check);
  connecting_ = nullptr;
  if (status.ok()) {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kNew) {
      state_ = State::kReady;
    } else {
      status = aborted("CommInitRankConfig");
    }
  }
  if (!status.ok()) end(Rest::kNone);
  return status;
}

Status Connection::make_child(Purpose purpose, std::string_view function, const std::shared_ptr<Connection>& child,
                              const Settings& settings, MakeChild make, const WaitCheck& check) {
  const auto made = [&]() -> Status {
    ACCORD_RETURN_IF_ERROR(child->enter(Purpose::kConnecting, function, check));
    if (Status entered = enter(purpose, function, check); !entered.ok()) {
      child->leave();
      return entered;
    }
    const auto call = [self = shared_from_this(), child, settings, make = std::move(make)] {
      Config config = settings.config();
      return make(self->handle(), &child->handle_, &config);
    };
    ACCORD_RETURN_IF_ERROR(finish_apart(begin_apart(function, {shared_from_this(), child}, call), check));
    const std::lock_guard lock(child->mutex_);
    if (child->state_ != State::kNew) return aborted(function);
    if (child->handle() != nullptr) child->state_ = State::kReady;
    return {};
  };
  Status status = made();
  if (!status.ok()) child->end(Rest::kNone);
  return status;
}

Status Connection::run(std::string_view function, std::function<int(Communicator*)> call, const WaitCheck& check) {
  ACCORD_RETURN_IF_ERROR(enter(Purpose::kCalling, function, check));
  const auto on_it = [self = shared_from_this(), call = std::move(call)] { return call(self->handle()); };
  return finish_apart(begin_apart(function, {shared_from_this()}, on_it), check);
}

Status Connection::asynchronous_error() {
  {
    const std::lock_guard lock(mutex_);
    if (is_in_call_ || state_ != State::kReady) return {};
    is_in_call_ = true;
  }
  int code = kSuccess;
  if (const int asked = nccl().CommGetAsyncError(handle(), &code); asked != kSuccess) code = asked;
  leave();
  if (code == kSuccess || code == kInProgress) return {};
  return place_.library.failure("CommGetAsyncError", code);
}

void Connection::set_captured() {
  const std::lock_guard lock(mutex_);
  is_captured_ = true;
}

void Connection::end(Rest rest) {
  std::unique_lock lock(mutex_);
  const State before = state_;
  if (rest == Rest::kNone) leaves_rest_ = false;
  const bool is_over = before == State::kEnding || before == State::kEnded;
  if (is_over || (before == State::kRevoked && rest == Rest::kRevoked)) return;
  if (is_borrowed_ || (!is_in_call_ && handle() == nullptr)) {
    set_ended(lock);
    return;
  }
  leaves_rest_ = rest == Rest::kRevoked && nccl().CommRevoke != nullptr && nccl().CommShrink != nullptr;
  state_ = State::kEnding;
  changed_.notify_all();
  const Status started = run_in_thread([self = shared_from_this(), before] { self->finish_ending(before); });
  if (!started.ok()) stay(before, started);
}

void Connection::stay(State before, const Status& why) {
  state_ = before;
  log().warn("an NCCL communicator is not ended now: {}", why.message());
}

void Connection::finish_ending(State before) {
  const device::CurrentDevice current(place_.runtime, place_.device);
  const auto has_left = [this] { return !is_in_call_; };
  const bool can_be_revoked = before == State::kReady && nccl().CommRevoke != nullptr;
  std::unique_lock lock(mutex_);
  bool is_alone = changed_.wait_for(lock, can_be_revoked ? kGraceBeforeRevoke : kGraceBeforeAbort, has_left);
  if (can_be_revoked && (leaves_rest_ || !is_alone)) {
    lock.unlock();
    const bool is_revoked = revoke();
    lock.lock();
    is_alone = changed_.wait_for(lock, kGraceBeforeAbort, has_left);
    if (is_revoked && is_alone && leaves_rest_) {
      state_ = State::kRevoked;
      changed_.notify_all();
      return;
    }
  }
  // NCCL stores a communicator that it is creating some time after the call has begun.
  while (is_in_call_ && handle() == nullptr) (void)changed_.wait_for(lock, kLook);
  // Graphs use the communicator until they are destroyed. NCCL waits for them before it frees one, but not after it was
  // revoked. So such a communicator is never freed.
  if (handle() != nullptr && !(is_revoked_ && is_captured_)) abort(lock);
  changed_.wait(lock, has_left);
  set_ended(lock);
}

bool Connection::revoke() {
  int code = nccl().CommRevoke(handle(), 0);
  is_revoked_ = code == kSuccess || code == kInProgress;
  const Deadline deadline = Deadline::in(kRevokeTimeout);
  Waiter waiter(WaitPolicy::kYield);
  while (code == kInProgress && !deadline.passed()) {
    if (nccl().CommGetAsyncError(handle(), &code) != kSuccess) return false;
    (void)waiter.pause();
  }
  return code == kSuccess;
}

void Connection::abort(std::unique_lock<std::mutex>& lock) {
  if (std::exchange(is_aborted_, true)) return;
  const bool is_awaited = is_in_call_;
  lock.unlock();
  const bool in_group = is_awaited && nccl().GroupStart() == kSuccess;
  (void)nccl().CommAbort(handle());
  lock.lock();
  if (!in_group) return;
  changed_.wait(lock, [this] { return !is_in_call_; });
  lock.unlock();
  (void)nccl().GroupEnd();
  lock.lock();
}

void Connection::set_ended(std::unique_lock<std::mutex>& lock) {
  state_ = State::kEnded;
  std::vector<std::shared_ptr<void>> kept = std::exchange(kept_, {});
  lock.unlock();
  changed_.notify_all();
  // The owner of a borrowed communicator ends it at some other time, if ever.
  if (is_borrowed_ && !kept.empty()) (void)new std::vector<std::shared_ptr<void>>(std::move(kept));
}

bool Connection::is_revoked_by(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline.at(), [this] { return state_ != State::kEnding; })) leaves_rest_ = false;
  return state_ == State::kRevoked;
}

void Connection::begin_destroying() {
  std::unique_lock lock(mutex_);
  if (state_ != State::kReady || is_borrowed_) {
    lock.unlock();
    end(Rest::kNone);
    return;
  }
  state_ = State::kEnding;
  const Status started = run_in_thread([self = shared_from_this()] { self->destroy(); });
  is_destroying_ = started.ok();
  if (!started.ok()) stay(State::kReady, started);
}

void Connection::destroy() {
  const device::CurrentDevice current(place_.runtime, place_.device);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !is_in_call_; });
  lock.unlock();
  const int code = nccl().CommDestroy(handle());
  if (code != kSuccess) {  // in a thread of its own: NCCL leaves this one in a group if it refuses to destroy
    const auto finish = [self = shared_from_this()] { self->finish_ending(State::kEnding); };
    if (!run_in_thread(finish).ok()) finish();
    return;
  }
  lock.lock();
  set_ended(lock);
}

void Connection::await_end(Deadline deadline) {
  const auto has_ended = [this] { return state_ != State::kEnding; };
  std::unique_lock lock(mutex_);
  if (changed_.wait_until(lock, deadline.at(), has_ended) || !is_destroying_) return;
  // ncclCommDestroy() waits for operations in streams. An abort ends these, and leaves the rest to that call.
  (void)run_in_thread([self = shared_from_this()] {
    const device::CurrentDevice current(self->place_.runtime, self->place_.device);
    std::unique_lock aborting(self->mutex_);
    if (self->state_ == State::kEnding) self->abort(aborting);
  });
  (void)changed_.wait_for(lock, kDestroyTimeout, has_ended);
}

Status Use::settle(std::string_view function, const WaitCheck& check) {
  if (std::exchange(is_in_progress_, false)) ACCORD_RETURN_IF_ERROR(connection_.await_idle(function, check));
  const std::lock_guard lock(connection_.mutex_);
  return connection_.state_ == Connection::State::kReady ? Status() : aborted(function);
}

}  // namespace accord::comm::nccl
