// A stream is a thread with a queue. Every wait, in a stream or in a caller, is for a Point, on the runtime's one
// condition variable, which also signals the end of the runtime; so no wait outlives it. Each stream waits for work
// on its own condition variable: some tests have a hundred streams, and waking all of them for each call takes
// most of the time.
#include "device/host_stream.hpp"

#include <fmt/format.h>

#include <utility>

namespace accord::testing {

void BusyStream::release() {
  if (end_ != nullptr) runtime_->reach_point(end_);
  end_ = nullptr;
}

HostRuntime::HostRuntime(int devices) : count_(devices) {}

HostRuntime::~HostRuntime() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  changed_.notify_all();
  for (auto& [index, worker] : defaults_) retired_.push_back(std::move(worker));
  for (auto& [handle, worker] : streams_) retired_.push_back(std::move(worker));
  for (const auto& worker : retired_) worker->work.notify_one();
  lock.unlock();
  for (const auto& worker : retired_)
    if (worker->thread.joinable()) worker->thread.join();
  while (!multicasts_.empty()) (void)leave_multicast({DeviceType::kCuda, 0}, {.handle = *multicasts_.begin()});
  while (!allocations_.empty()) {
    const auto& [memory, allocation] = *allocations_.begin();
    (void)free_memory("~HostRuntime", allocation.device, const_cast<void*>(memory));
  }
}

void HostRuntime::work(Worker& worker) {
  std::unique_lock lock(mutex_);
  while (true) {
    worker.work.wait(lock, [&] { return ending_ || worker.retired || !worker.queue.empty(); });
    if (ending_ || worker.queue.empty()) break;
    const Task task = std::move(worker.queue.front());
    worker.queue.pop_front();
    const bool is_kernel = task.kind == Task::Kind::kKernel;
    const auto begin_next = is_kernel ? early_begin(worker) : nullptr;
    lock.unlock();
    const std::unique_ptr<EarlyKernel> begun = is_kernel ? std::move(worker.begun) : nullptr;
    if (begin_next) worker.begun = begin_next();
    begun ? begun->finish() : task.run();
    lock.lock();
    worker.unfinished -= task.kind == Task::Kind::kPoint ? 0 : 1;
  }
  worker.begun.reset();
  worker.ended = true;
}

std::function<std::unique_ptr<EarlyKernel>()> HostRuntime::early_begin(const Worker& worker) {
  for (const Task& next : worker.queue)
    if (next.kind != Task::Kind::kPoint) return next.begin;
  return nullptr;
}

void HostRuntime::retire(std::unique_ptr<Worker> worker) {
  worker->retired = true;
  worker->work.notify_one();
  if (!worker->thread.joinable()) worker->ended = true;
  retired_.push_back(std::move(worker));
  // A worker that has ended does not take the lock again, so it may be joined while the lock is held.
  for (auto each = retired_.begin(); each != retired_.end();) {
    if ((*each)->ended && (*each)->thread.joinable()) (*each)->thread.join();
    each = (*each)->ended ? retired_.erase(each) : std::next(each);
  }
}

void HostRuntime::join_destroyed_streams() {
  std::unique_lock lock(mutex_);
  const std::list<std::unique_ptr<Worker>> ending = std::exchange(retired_, {});
  lock.unlock();
  for (const auto& worker : ending)
    if (worker->thread.joinable()) worker->thread.join();
}

Result<Worker*> HostRuntime::find(std::string_view call, Device device, Stream stream) {
  ACCORD_RETURN_IF_ERROR(check(call, device));
  if (stream.handle == nullptr) {
    auto& worker = defaults_[device.index];
    if (worker == nullptr) worker.reset(new Worker{.device = device, .id = ++last_stream_id_, .is_default = true});
    return worker.get();
  }
  const auto found = streams_.find(stream.handle);
  if (found == streams_.end()) return Status(StatusCode::kInternal, fmt::format("{}: no such stream", call));
  Worker* const worker = found->second.get();
  if (worker->device == device) return worker;
  return Status(StatusCode::kInternal, fmt::format("{}: the stream belongs to {}, not to {}", call,
                                                   to_string(worker->device), to_string(device)));
}

void HostRuntime::append(Worker& worker, Task task) {
  worker.unfinished += task.kind == Task::Kind::kPoint ? 0 : 1;
  worker.queue.push_back(std::move(task));
  if (!worker.thread.joinable()) worker.thread = std::thread([this, &worker] { work(worker); });
  worker.work.notify_one();
}

void HostRuntime::order_with_default(Worker& worker) {
  const auto wait_for = [&](Worker& other) {
    if (!other.thread.joinable() || other.capture != nullptr) return;
    const PointRef point = make_point();
    append(other, {[this, point] { reach_point(point); }, Task::Kind::kPoint});
    append(worker, {[this, point] { await(point); }});
  };
  if (worker.is_blocking) {
    const auto found = defaults_.find(worker.device.index);
    if (found != defaults_.end()) wait_for(*found->second);
  }
  if (!worker.is_default) return;
  for (const auto& [handle, other] : streams_)
    if (other->is_blocking && other->device == worker.device) wait_for(*other);
}

Status HostRuntime::push(Worker& worker, Task task) {
  if (worker.capture == nullptr) {
    order_with_default(worker);
    append(worker, std::move(task));
    return {};
  }
  if (!worker.capture->valid)
    return Status(StatusCode::kInternal, "the stream's capture was invalidated by an earlier error");
  auto& nodes = worker.capture->graph->nodes;
  nodes.push_back({.task = std::move(task), .lane = worker.lane, .after = worker.tail});
  worker.tail = {nodes.size() - 1};
  return {};
}

PointRef HostRuntime::make_point() { return std::make_shared<Point>(); }

void HostRuntime::reach_point(const PointRef& point) {
  const std::lock_guard lock(mutex_);
  point->reached = true;
  changed_.notify_all();
}

bool HostRuntime::await(const PointRef& point) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return point->reached || ending_; });
  return point->reached;
}

bool HostRuntime::is_reached(const PointRef& point) const {
  const std::lock_guard lock(mutex_);
  return point == nullptr || point->capture != nullptr || point->reached;
}

Result<PointRef> HostRuntime::mark(Worker& worker) {
  auto point = make_point();
  if (worker.capture != nullptr) {
    if (!worker.capture->valid)
      return Status(StatusCode::kInternal, "the stream's capture was invalidated by an earlier error");
    point->capture = worker.capture;
    point->nodes = worker.tail;
    return point;
  }
  append(worker, {[this, point] { reach_point(point); }, Task::Kind::kPoint});
  return point;
}

Status HostRuntime::follow(Worker& worker, const PointRef& point) {
  if (point == nullptr) return {};
  if (point->capture != nullptr) return join(worker, point);
  if (worker.capture == nullptr) return point->reached ? Status() : push(worker, {[this, point] { await(point); }});
  worker.capture->valid = false;
  return Status(StatusCode::kInternal,
                "a stream that is being captured cannot wait for something outside of the capture");
}

Result<PointRef> HostRuntime::mark(Device device, Stream stream) {
  const std::lock_guard lock(mutex_);
  ACCORD_ASSIGN_OR_RETURN(Worker* const worker, find("mark", device, stream));
  return mark(*worker);
}

Status HostRuntime::follow(const PointRef& point, Device device, Stream stream) {
  const std::lock_guard lock(mutex_);
  ACCORD_ASSIGN_OR_RETURN(Worker* const worker, find("follow", device, stream));
  return follow(*worker, point);
}

void HostRuntime::wait_for_all(Device device) {
  std::vector<PointRef> ends;
  {
    const std::lock_guard lock(mutex_);
    const auto end = [&](const std::unique_ptr<Worker>& worker) {
      if (worker == nullptr || worker->device != device || worker->capture != nullptr) return;
      if (const Result<PointRef> point = mark(*worker); point.ok()) ends.push_back(*point);
    };
    for (const auto& [index, worker] : defaults_) end(worker);
    for (const auto& [handle, worker] : streams_) end(worker);
  }
  for (const PointRef& point : ends) (void)await(point);
}

Status HostRuntime::enqueue(Device device, Stream stream, std::function<void()> run) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("enqueue"));
  ACCORD_ASSIGN_OR_RETURN(Worker* const worker, find("enqueue", device, stream));
  return push(*worker, {std::move(run)});
}

BusyStream HostRuntime::make_stream_busy(Stream stream, Device device) {
  auto end = make_point();
  if (stream.handle != nullptr) device = device_of(stream).value_or(device);
  (void)enqueue(device, stream, [this, end] { await(end); });
  return {*this, end};
}

void HostRuntime::make_stream_blocking(Stream stream) {
  const std::lock_guard lock(mutex_);
  streams_.at(stream.handle)->is_blocking = true;
}

std::optional<Device> HostRuntime::device_of(Stream stream) const {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream.handle);
  return found == streams_.end() ? std::nullopt : std::optional(found->second->device);
}

}  // namespace accord::testing
