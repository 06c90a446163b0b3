#pragma once
// Devices of type "cuda" over the host's memory and threads, so that accord's code for GPUs runs and is tested
// without a GPU.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/runtime.hpp"

namespace accord::testing {

class EarlyKernel;
struct Point;
struct Task;
struct Worker;
struct CapturedGraph;

/// Returns kInternal with the text that a device's library would report: "`call`: `reason`".
Status error(std::string_view call, std::string_view reason);

/// A position in a stream, reached once.
using PointRef = std::shared_ptr<Point>;
/// The recording of a capture.
using Graph = std::shared_ptr<CapturedGraph>;

class HostRuntime;

/// Holds back a stream from its creation until release(), which the destructor calls.
class BusyStream {
 public:
  BusyStream(HostRuntime& runtime, PointRef end) : runtime_(&runtime), end_(std::move(end)) {}
  ~BusyStream() { release(); }
  BusyStream(BusyStream&&) = default;
  BusyStream& operator=(BusyStream&&) = delete;
  void release();

 private:
  HostRuntime* runtime_;
  PointRef end_;
};

/// Objects that were created and not yet released.
struct LiveObjects {
  std::size_t allocations = 0;  ///< on devices
  std::size_t host_allocations = 0;
  std::size_t streams = 0;
  std::size_t events = 0;
  std::size_t graphs = 0;      ///< from capture()
  std::size_t multicasts = 0;  ///< joined
  bool operator==(const LiveObjects&) const = default;
};

/// Each stream is a thread that is started when something is first put into it. Stricter than the interface requires:
/// memory is filled with 0xA5; release() waits for nothing, and ends the program if another process has the memory
/// open; and a stream, event or allocation of a device other than the given one is an error. A kernel that starts early
/// begins before the kernel ahead of it, if it is in the stream by then. Captures work as in CUDA:
/// a stream that waits for a captured event joins the capture. A capture that waits for something outside of it is an
/// error, as is a query or synchronization of something captured; both invalidate the capture. Work that is left in
/// streams when the runtime ends is not done.
class HostRuntime final : public device::Runtime {
 public:
  explicit HostRuntime(int devices = 4);
  ~HostRuntime() override;
  HostRuntime(const HostRuntime&) = delete;
  HostRuntime& operator=(const HostRuntime&) = delete;
  /// Returns the instance that this library's NCCL uses.
  static HostRuntime& instance();

  Status viable() override;
  int count() override;
  Result<std::optional<Device>> device_of(const void* memory) override;
  Result<device::MappedMemory> mapped_memory(Device device, const void* memory, std::size_t bytes) override;
  Result<void*> allocate(Device device, std::size_t bytes) override;
  Status release(Device device, void* memory) override;
  Result<void*> allocate_host(Device device, std::size_t bytes) override;
  Status release_host(Device device, void* memory) override;
  Result<int> multiprocessors(Device device) override;
  Result<std::size_t> max_shared_bytes(Device device) override;
  Status reach(Device from, Device to, void* memory, std::size_t bytes) override;
  Result<device::MemoryHandle> share(Device device, void* memory, std::size_t bytes, UniqueFd& descriptor) override;
  Result<void*> open_shared(Device device, const device::MemoryHandle& handle, int descriptor) override;
  Status close_shared(Device device, void* memory) override;
  Status fill(void* memory, unsigned char value, std::size_t bytes, Device device, Stream stream) override;
  /// Runs kernels of host_kernels.cpp on threads of the host (host_block.hpp).
  Status launch(const device::Kernel& kernel, const void* arguments, const device::Grid& grid, Device device,
                Stream stream) override;
  Result<std::string> identity(Device device) override;
  Result<std::size_t> multicast_bytes(Device device, int devices, std::size_t bytes) override;
  Result<device::Multicast> create_multicast(Device device, int devices, std::size_t bytes,
                                             UniqueFd& descriptor) override;
  Result<device::Multicast> join_multicast(Device device, int descriptor, std::size_t bytes) override;
  Status bind_multicast(Device device, device::Multicast& joined) override;
  Status leave_multicast(Device device, const device::Multicast& joined) override;
  Status push_current(Device device) override;
  void pop_current() override;
  Result<std::string> describe(Device device) override;
  Status copy(void* to, const void* from, std::size_t bytes, Device device, Stream stream) override;
  Status record(device::Event event, Device device, Stream stream) override;
  Status wait(device::Event event, Device device, Stream stream) override;
  Status synchronize(Device device, Stream stream) override;
  Result<bool> is_capturing(Device device, Stream stream) override;
  Result<std::uint64_t> stream_id(Device device, Stream stream) override;
  Result<device::Graph> capture(Device device, Stream stream, const std::function<Status()>& body) override;
  Status launch_graph(device::Graph graph, Device device, Stream stream) override;
  Status destroy_graph(device::Graph graph) override;
  Result<Stream> create_stream(Device device, bool high_priority) override;
  Status destroy_stream(Device device, Stream stream) override;
  Result<device::Event> create_event(Device device) override;
  Status destroy_event(device::Event event) override;
  Result<bool> has_happened(device::Event event) override;

  /// Sets the number of devices.
  void set_count(int devices);
  /// Makes the next call of the method `call` ("allocate", "record", ...) return `failure` and do nothing else.
  /// Repeated requests queue up. A failing count() returns 0.
  void fail_next(std::string_view call, Status failure);
  /// The limit of an H100, unless a test sets another one.
  static constexpr std::size_t kMaxSharedBytes = std::size_t{227} << 10;
  void set_max_shared_bytes(std::size_t bytes) { max_shared_bytes_ = bytes; }
  /// Sets whether release() waits for everything in the device's streams, as CUDA's does.
  void set_release_waits(bool waits) { release_waits_ = waits; }
  /// Sets whether a copy to or from memory that the runtime does not know (pageable memory) is like CUDA's: the caller
  /// waits until it is done, and until then calls of other threads for the same device wait as well.
  void set_pageable_copies_block(bool blocks) { pageable_copies_block_ = blocks; }
  /// Returns whether a thread waits for such a copy.
  bool is_copying(Device device) const;
  /// Sets whether the first launch of a graph that was not uploaded waits for everything in the device's streams, as
  /// CUDA may do while it allocates memory. capture() uploads graphs, end_capture() does not.
  void set_first_launches_wait(bool waits) { first_launches_wait_ = waits; }
  LiveObjects live() const;
  /// Returns how often the kernel has been put into streams. A kernel of a captured graph counts once.
  int launches(std::string_view kernel) const;
  /// Returns the same for all kernels that were launched.
  std::map<std::string, int, std::less<>> launches() const;
  /// Returns the most blocks with which the kernel has been put into streams.
  int most_blocks(std::string_view kernel) const;
  /// Returns the bytes that have been copied to memory of no device.
  std::size_t copied_to_host() const { return copied_to_host_; }
  /// Returns the number of copies between a device and memory of no device that were put behind unfinished work of
  /// their stream. CUDA calls block in such copies, and calls of other threads may then block, too.
  std::size_t copies_behind_work() const { return copies_behind_work_; }
  /// Returns the bytes of copies from or to memory that is neither a device's nor of allocate_host().
  std::size_t copied_pageable() const { return copied_pageable_; }
  /// Returns once everything in destroyed streams is done and their threads have ended.
  void join_destroyed_streams();
  /// Holds back everything that is put into `stream` later. `device`: the device whose default stream a null `stream`
  /// is. REQUIRES: a stream that is not captured.
  BusyStream make_stream_busy(Stream stream, Device device = {DeviceType::kCuda, 0});
  /// Makes the stream one that the device's default stream waits for, and that waits for it, as CUDA's do that are
  /// created without cudaStreamNonBlocking. REQUIRES: a stream of create_stream().
  void make_stream_blocking(Stream stream);
  /// Puts `run` into the stream. It may block, but only in await(), and runs at each launch of a graph that captured
  /// it.
  Status enqueue(Device device, Stream stream, std::function<void()> run);

  /// Fails for a default stream, as in CUDA.
  Status begin_capture(Device device, Stream stream);
  /// Takes the stream that began the capture; streams that joined must have been waited for.
  Result<Graph> end_capture(Device device, Stream stream);
  /// Work that was captured in one stream keeps its order; streams that joined run in parallel. A null stream is the
  /// default stream of the device on which the capture began.
  Status launch(const Graph& graph, Stream stream);

  /// Sets the calling thread's current device, which is 0 at first.
  static void set_current_device(int index);
  static int current_device();

  // For code that is built on streams.
  /// Returns whether all `bytes` are in one allocation, either of a device or from allocate_host().
  bool holds(const void* memory, std::size_t bytes) const;
  /// Returns the bytes of the device's memory that are allocated.
  std::size_t bytes_on(Device device) const;
  /// Returns the device of a stream, by its handle; nullopt for an unknown stream.
  std::optional<Device> device_of(Stream stream) const;
  Result<void*> allocate(Device device, std::size_t bytes, std::size_t alignment);
  /// Allocates memory as by the virtual memory calls: an allocation of each of these sizes, mapped side by side.
  /// release() releases all of them. REQUIRES: the sizes are multiples of kMapGranularity.
  Result<void*> allocate_mapped(Device device, std::vector<std::size_t> sizes);
  static constexpr std::size_t kMapGranularity = std::size_t{64} << 10;
  /// Returns a point that is reached by reach_point().
  PointRef make_point();
  void reach_point(const PointRef& point);
  /// Blocks until `point` has been reached and returns true; returns false if the runtime ends first.
  bool await(const PointRef& point);
  /// Returns whether everything that was put into a stream before `point` is done; true for null and for captured
  /// points.
  bool is_reached(const PointRef& point) const;
  /// Returns the point after everything that is in the stream.
  Result<PointRef> mark(Device device, Stream stream);
  /// Makes later work in the stream begin after `point`, as wait() does with an event.
  Status follow(const PointRef& point, Device device, Stream stream);
  /// Returns whether `point` is in the capture that the stream belongs to, or both are outside of any capture.
  bool in_same_capture(const PointRef& point, Device device, Stream stream);

 private:
  struct Allocation {
    std::size_t bytes;
    std::size_t alignment;
    std::optional<Device> device;
    int file = -1;                         ///< holds the device's memory, so that other processes can open it
    std::vector<std::size_t> mapped = {};  ///< sizes of the allocations of allocate_mapped()
  };

  Status pop_failure(std::string_view call);
  Status check(std::string_view call, Device device) const;
  Result<Worker*> find(std::string_view call, Device device, Stream stream);
  Result<PointRef*> find(std::string_view call, device::Event event);
  const Allocation* allocation_of(const void* memory, std::size_t bytes) const;
  /// Returns whether the memory is of a device, of allocate_host(), or of another process that shares it.
  bool is_known(const void* memory, std::size_t bytes) const;
  void* allocate_memory(std::size_t bytes, std::size_t alignment, std::optional<Device> device);
  Status free_memory(std::string_view call, std::optional<Device> device, void* memory);

  /// Waits until no other thread's copy has the device to itself.
  std::unique_lock<std::mutex> enter(Device device);
  /// The same for the event's device.
  std::unique_lock<std::mutex> enter(device::Event event);
  void wait_for_all(Device device);
  /// Puts it at the end of the queue. REQUIRES: the stream is not captured.
  void append(Worker& worker, Task task);
  Status push(Worker& worker, Task task);
  void order_with_default(Worker& worker);
  /// How to begin the next task before the kernel ahead of it; null if it cannot start early.
  static std::function<std::unique_ptr<EarlyKernel>()> early_begin(const Worker& worker);
  Result<PointRef> mark(Worker& worker);
  Status follow(Worker& worker, const PointRef& point);
  Status join(Worker& worker, const PointRef& point);
  void retire(std::unique_ptr<Worker> worker);
  void work(Worker& worker);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  int count_;
  std::map<const void*, Allocation> allocations_;
  std::set<void*> multicasts_;
  struct Opened {
    std::size_t bytes = 0;
    UniqueFd file;
  };
  std::map<void*, Opened> opened_;  ///< memory of other processes
  std::map<int, std::unique_ptr<Worker>> defaults_;
  std::map<void*, std::unique_ptr<Worker>> streams_;
  std::uint64_t last_stream_id_ = 0;
  std::list<std::unique_ptr<Worker>> retired_;
  struct EventState {
    Device device;
    PointRef last;
  };
  std::map<void*, std::unique_ptr<EventState>> events_;
  std::map<void*, Graph> graphs_;
  std::map<std::string, std::deque<Status>, std::less<>> failures_;
  std::map<std::string, int, std::less<>> launches_;
  std::map<std::string, int, std::less<>> most_blocks_;
  std::atomic<std::size_t> copied_to_host_ = 0;
  std::atomic<std::size_t> copies_behind_work_ = 0;
  std::atomic<std::size_t> copied_pageable_ = 0;
  std::atomic<std::size_t> max_shared_bytes_ = kMaxSharedBytes;
  std::atomic<bool> release_waits_ = false;
  std::atomic<bool> first_launches_wait_ = false;
  std::atomic<bool> pageable_copies_block_ = false;
  std::map<int, std::thread::id> copying_;  ///< by device: the thread that has it to itself
};

}  // namespace accord::testing
