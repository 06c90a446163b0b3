// The interface's calls, each under the one mutex. Memory is found by its address in a map, streams and events by
// their handles, so that invalid ones are reported and never dereferenced. An event is the point that was last
// recorded as it.
#include "device/host_runtime.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "device/host_block.hpp"
#include "device/host_stream.hpp"

namespace accord::testing {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr int kHostMultiprocessors = 16;
thread_local int current = 0;
thread_local std::vector<int> before_current;  // for push_current()

using Arguments = std::vector<std::max_align_t>;  // aligned like any kernel's

class EarlyHostKernel final : public EarlyKernel {
 public:
  EarlyHostKernel(const HostKernel& kernel, std::shared_ptr<const Arguments> arguments, const device::Grid& grid)
      : arguments_(std::move(arguments)), run_(blocks_of(kernel, arguments_->data(), grid)) {
    run_.begin();
  }
  void finish() override { run_.finish(); }

 private:
  const std::shared_ptr<const Arguments> arguments_;
  HostRun run_;
};

}  // namespace

Status error(std::string_view call, std::string_view reason) {
  return Status(StatusCode::kInternal, fmt::format("{}: {}", call, reason));
}

HostRuntime& HostRuntime::instance() {
  static HostRuntime runtime;
  return runtime;
}

void HostRuntime::set_current_device(int index) { current = index; }
int HostRuntime::current_device() { return current; }

std::unique_lock<std::mutex> HostRuntime::enter(Device device) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    const auto found = copying_.find(device.index);
    return ending_ || found == copying_.end() || found->second == std::this_thread::get_id();
  });
  return lock;
}

bool HostRuntime::is_copying(Device device) const {
  const std::lock_guard lock(mutex_);
  return copying_.contains(device.index);
}

std::unique_lock<std::mutex> HostRuntime::enter(device::Event event) {
  std::optional<Device> of;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = events_.find(event.handle); found != events_.end()) of = found->second->device;
  }
  return of ? enter(*of) : std::unique_lock(mutex_);
}

Status HostRuntime::pop_failure(std::string_view call) {
  const auto found = failures_.find(call);
  if (found == failures_.end() || found->second.empty()) return {};
  const Status failure = found->second.front();
  found->second.pop_front();
  return failure;
}

Status HostRuntime::check(std::string_view call, Device device) const {
  if (device.type == DeviceType::kCuda && device.index >= 0 && device.index < count_) return {};
  return error(call, fmt::format("{} does not exist: there are {} devices", to_string(device), count_));
}

void HostRuntime::fail_next(std::string_view call, Status failure) {
  const std::lock_guard lock(mutex_);
  failures_[std::string(call)].push_back(std::move(failure));
}

void HostRuntime::set_count(int devices) {
  const std::lock_guard lock(mutex_);
  count_ = devices;
}

Status HostRuntime::viable() {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("viable"));
  return count_ > 0 ? Status() : Status(StatusCode::kUnsupported, "the test has no devices");
}

int HostRuntime::count() {
  const std::lock_guard lock(mutex_);
  return pop_failure("count").ok() ? count_ : 0;
}

LiveObjects HostRuntime::live() const {
  const std::lock_guard lock(mutex_);
  LiveObjects live{
      .streams = streams_.size(), .events = events_.size(), .graphs = graphs_.size(), .multicasts = multicasts_.size()};
  for (const auto& [memory, allocation] : allocations_)
    ++(allocation.device.has_value() ? live.allocations : live.host_allocations);
  return live;
}

const HostRuntime::Allocation* HostRuntime::allocation_of(const void* memory, std::size_t bytes) const {
  auto next = allocations_.upper_bound(memory);
  if (next == allocations_.begin()) return nullptr;
  const auto& [begin, allocation] = *--next;
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(memory) - reinterpret_cast<std::uintptr_t>(begin);
  return offset < allocation.bytes && bytes <= allocation.bytes - offset ? &allocation : nullptr;
}

bool HostRuntime::is_known(const void* memory, std::size_t bytes) const {
  if (allocation_of(memory, bytes) != nullptr) return true;
  const auto is_around = [&](const auto& one) {
    const auto* const begin = static_cast<const std::byte*>(one.first);
    const auto* const at = static_cast<const std::byte*>(memory);
    return begin <= at && at + bytes <= begin + one.second.bytes;
  };
  return std::any_of(opened_.begin(), opened_.end(), is_around);
}

bool HostRuntime::holds(const void* memory, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return allocation_of(memory, bytes) != nullptr;
}

std::size_t HostRuntime::bytes_on(Device device) const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [memory, allocation] : allocations_)
    if (allocation.device == device) bytes += allocation.bytes;
  return bytes;
}

Result<std::optional<Device>> HostRuntime::device_of(const void* memory) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("device_of"));
  const Allocation* const found = allocation_of(memory, 1);
  return found == nullptr ? std::nullopt : found->device;
}

Result<void*> HostRuntime::allocate(Device device, std::size_t bytes) { return allocate(device, bytes, kAlignment); }

Result<void*> HostRuntime::allocate(Device device, std::size_t bytes, std::size_t alignment) {
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("allocate"));
  ACCORD_RETURN_IF_ERROR(check("allocate", device));
  return allocate_memory(bytes, alignment, device);
}

Status HostRuntime::release(Device device, void* memory) {
  if (release_waits_) wait_for_all(device);
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("release"));
  ACCORD_RETURN_IF_ERROR(check("release", device));
  return free_memory("release", device, memory);
}

Result<void*> HostRuntime::allocate_host(Device device, std::size_t bytes) {
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("allocate_host"));
  ACCORD_RETURN_IF_ERROR(check("allocate_host", device));
  return allocate_memory(bytes, kAlignment, std::nullopt);
}

Status HostRuntime::release_host(Device device, void* memory) {
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("release_host"));
  ACCORD_RETURN_IF_ERROR(check("release_host", device));
  return free_memory("release_host", std::nullopt, memory);
}

Status HostRuntime::push_current(Device device) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("push_current"));
  ACCORD_RETURN_IF_ERROR(check("push_current", device));
  before_current.push_back(current);
  current = device.index;
  return {};
}

void HostRuntime::pop_current() {
  current = before_current.back();
  before_current.pop_back();
}

Result<std::string> HostRuntime::describe(Device device) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("describe"));
  ACCORD_RETURN_IF_ERROR(check("describe", device));
  return std::string("host memory");
}

Status HostRuntime::copy(void* to, const void* from, std::size_t bytes, Device device, Stream stream) {
  std::unique_lock lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("copy"));
  ACCORD_ASSIGN_OR_RETURN(Worker* const worker, find("copy", device, stream));
  if (bytes == 0) return {};
  const Allocation* const there = allocation_of(to, bytes);
  const bool to_host = there == nullptr || !there->device;
  const bool is_pageable = !is_known(to, bytes) || !is_known(from, bytes);
  if (is_pageable && worker->capture == nullptr && worker->unfinished > 0) ++copies_behind_work_;
  ACCORD_RETURN_IF_ERROR(push(*worker, {[=, this] {
    std::memmove(to, from, bytes);
    if (to_host) copied_to_host_ += bytes;
    if (is_pageable) copied_pageable_ += bytes;
  }}));
  if (!pageable_copies_block_ || worker->capture != nullptr || !is_pageable) return {};
  ACCORD_ASSIGN_OR_RETURN(const PointRef end, mark(*worker));
  copying_[device.index] = std::this_thread::get_id();
  changed_.wait(lock, [&] { return end->reached || ending_; });
  copying_.erase(device.index);
  changed_.notify_all();
  return {};
}

Result<int> HostRuntime::multiprocessors(Device device) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("multiprocessors"));
  ACCORD_RETURN_IF_ERROR(check("multiprocessors", device));
  return kHostMultiprocessors;
}

Result<std::size_t> HostRuntime::max_shared_bytes(Device device) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("max_shared_bytes"));
  ACCORD_RETURN_IF_ERROR(check("max_shared_bytes", device));
  return max_shared_bytes_.load();
}

Status HostRuntime::reach(Device from, Device to, void* /*memory*/, std::size_t /*bytes*/) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("reach"));
  ACCORD_RETURN_IF_ERROR(check("reach", from));
  return check("reach", to);
}

Status HostRuntime::fill(void* memory, unsigned char value, std::size_t bytes, Device device, Stream stream) {
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("fill"));
  ACCORD_ASSIGN_OR_RETURN(Worker* const worker, find("fill", device, stream));
  if (bytes == 0) return {};
  return push(*worker, {[=] { std::memset(memory, value, bytes); }});
}

Status HostRuntime::launch(const device::Kernel& kernel, const void* arguments, const device::Grid& grid, Device device,
                           Stream stream) {
  const HostKernel* const code = host_kernel(kernel.name);
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("launch"));
  if (code == nullptr) return error("launch", fmt::format("host_kernels.cpp has no kernel \"{}\"", kernel.name));
  ACCORD_ASSIGN_OR_RETURN(Worker* const worker, find("launch", device, stream));
  const auto* const first = static_cast<const std::byte*>(arguments);
  auto copy = std::make_shared<Arguments>(kernel.bytes / sizeof(Arguments::value_type) + 1);
  std::memcpy(copy->data(), first, kernel.bytes);
  ++launches_[kernel.name];
  int& most = most_blocks_[kernel.name];
  most = std::max(most, grid.blocks);
  Task task{[code, copy, grid] { run_grid(*code, copy->data(), grid); }, Task::Kind::kKernel};
  if (code->starts_early && !grid.together)
    task.begin = [code, copy, grid] { return std::make_unique<EarlyHostKernel>(*code, copy, grid); };
  return push(*worker, std::move(task));
}

int HostRuntime::launches(std::string_view kernel) const {
  const std::lock_guard lock(mutex_);
  const auto found = launches_.find(kernel);
  return found == launches_.end() ? 0 : found->second;
}

std::map<std::string, int, std::less<>> HostRuntime::launches() const {
  const std::lock_guard lock(mutex_);
  return launches_;
}

int HostRuntime::most_blocks(std::string_view kernel) const {
  const std::lock_guard lock(mutex_);
  const auto found = most_blocks_.find(kernel);
  return found == most_blocks_.end() ? 0 : found->second;
}

Result<PointRef*> HostRuntime::find(std::string_view call, device::Event event) {
  const auto found = events_.find(event.handle);
  if (found == events_.end()) return error(call, "no such event");
  return &found->second->last;
}

Status HostRuntime::record(device::Event event, Device device, Stream stream) {
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("record"));
  ACCORD_ASSIGN_OR_RETURN(PointRef* const last, find("record", event));
  ACCORD_ASSIGN_OR_RETURN(Worker* const worker, find("record", device, stream));
  if (const Device of = events_[event.handle]->device; of != device)
    return error("record", fmt::format("the event belongs to {}, not to {}", to_string(of), to_string(device)));
  ACCORD_ASSIGN_OR_RETURN(*last, mark(*worker));
  return {};
}

Status HostRuntime::wait(device::Event event, Device device, Stream stream) {
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("wait"));
  ACCORD_ASSIGN_OR_RETURN(const PointRef* const last, find("wait", event));
  ACCORD_ASSIGN_OR_RETURN(Worker* const worker, find("wait", device, stream));
  return follow(*worker, *last);
}

Status HostRuntime::synchronize(Device device, Stream stream) {
  std::unique_lock lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("synchronize"));
  ACCORD_ASSIGN_OR_RETURN(Worker* const worker, find("synchronize", device, stream));
  if (worker->capture != nullptr) {
    worker->capture->valid = false;
    return error("synchronize", "the stream is being captured");
  }
  ACCORD_ASSIGN_OR_RETURN(const PointRef end, mark(*worker));
  lock.unlock();
  return await(end) ? Status() : error("synchronize", "the runtime is being destroyed");
}

Result<Stream> HostRuntime::create_stream(Device device, bool /*high_priority*/) {
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("create_stream"));
  ACCORD_RETURN_IF_ERROR(check("create_stream", device));
  std::unique_ptr<Worker> worker(new Worker{.device = device, .id = ++last_stream_id_});
  const Stream stream{worker.get()};
  streams_[stream.handle] = std::move(worker);
  return stream;
}

Result<std::uint64_t> HostRuntime::stream_id(Device device, Stream stream) {
  const std::lock_guard lock(mutex_);
  ACCORD_RETURN_IF_ERROR(pop_failure("stream_id"));
  ACCORD_ASSIGN_OR_RETURN(const Worker* const worker, find("stream_id", device, stream));
  return worker->id;
}

Status HostRuntime::destroy_stream(Device device, Stream stream) {
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("destroy_stream"));
  ACCORD_ASSIGN_OR_RETURN(Worker* const worker, find("destroy_stream", device, stream));
  if (worker->is_default) return error("destroy_stream", "a default stream");
  if (worker->capture != nullptr) return error("destroy_stream", "the stream is being captured");
  retire(std::move(streams_[stream.handle]));
  streams_.erase(stream.handle);
  return {};
}

Result<device::Event> HostRuntime::create_event(Device device) {
  const auto lock = enter(device);
  ACCORD_RETURN_IF_ERROR(pop_failure("create_event"));
  ACCORD_RETURN_IF_ERROR(check("create_event", device));
  auto state = std::make_unique<EventState>(EventState{.device = device, .last = nullptr});
  const device::Event event{state.get()};
  events_[event.handle] = std::move(state);
  return event;
}

Status HostRuntime::destroy_event(device::Event event) {
  const auto lock = enter(event);
  ACCORD_RETURN_IF_ERROR(pop_failure("destroy_event"));
  ACCORD_RETURN_IF_ERROR(find("destroy_event", event).status());
  events_.erase(event.handle);
  return {};
}

Result<bool> HostRuntime::has_happened(device::Event event) {
  const auto lock = enter(event);
  ACCORD_RETURN_IF_ERROR(pop_failure("has_happened"));
  ACCORD_ASSIGN_OR_RETURN(const PointRef* const last, find("has_happened", event));
  if (*last == nullptr) return true;
  if ((*last)->capture == nullptr) return (*last)->reached;
  (*last)->capture->valid = false;
  return error("has_happened", "the event was last recorded in a capture");
}

}  // namespace accord::testing
