#pragma once
// Memory, streams and events of one type of device. The layers above access devices only through this interface, so a
// build without devices is the same program. device/cuda implements it for NVIDIA GPUs; the tests have an
// implementation over host memory.

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "accord/buffer.hpp"
#include "accord/status.hpp"
#include "base/fd.hpp"
#include "device/kernel.hpp"

namespace accord::device {

/// A point in a stream (a cudaEvent_t).
struct Event {
  void* handle = nullptr;
};

/// A captured part of a stream that can be launched repeatedly (a cudaGraphExec_t).
struct Graph {
  void* handle = nullptr;
};

/// A handle with which another process of this host can use memory: of an allocation (a cudaIpcMemHandle_t), and the
/// place in it.
struct MemoryHandle {
  std::array<unsigned char, 64> bytes = {};  ///< unused for virtual memory, which has a file descriptor instead
  std::size_t allocated = 0;                 ///< bytes of the allocation
  std::size_t offset = 0;
};

/// Physical allocations that are mapped side by side behind a range of addresses (cuMemCreate, cuMemMap).
struct MappedMemory {
  int allocations = 0;     ///< 0: a part of the range is other memory, or memory that other processes cannot open
  std::size_t bytes = 0;   ///< of all of them
  std::size_t offset = 0;  ///< of the range in the first one
};

/// A device's part of memory that a switch between devices accesses on all of them at once (NVSwitch multicast).
struct Multicast {
  void* handle = nullptr;
  std::byte* own = nullptr;  ///< this device's part, for copies and ordinary loads and stores; not zeroed
  /// Addresses the parts of all devices: kernels write to all of them or add them up (Block::store_multicast,
  /// sum_multicast).
  std::byte* all = nullptr;
};

/// Thread-safe. Only push_current() changes the calling thread's current device. No call initializes a device that it
/// does not name. Errors name the call and the device's error message. Failed allocations are kResourceExhausted; all
/// other errors are kInternal.
/// Has a method for each function of a vendor's library that accord uses.
class Runtime {
 public:
  virtual ~Runtime() = default;

  /// Returns ok if there is a usable device; otherwise kUnsupported with the reason.
  virtual Status viable() = 0;
  /// Devices are numbered 0 to count() - 1. Returns 0 if not viable().
  virtual int count() = 0;
  /// "NVIDIA H100, 80 GiB, 132 multiprocessors, compute capability 9.0".
  virtual Result<std::string> describe(Device device) = 0;
  /// Returns an id that no other device of this host has. It is the same in every process.
  virtual Result<std::string> identity(Device device) = 0;
  /// Returns the device on which `memory` is; nullopt for memory that no device knows.
  virtual Result<std::optional<Device>> device_of(const void* memory) = 0;
  /// Returns the mapped allocations of `device` behind these `bytes`. Memory of allocate() has none.
  virtual Result<MappedMemory> mapped_memory(Device device, const void* memory, std::size_t bytes) = 0;
  /// The number of blocks of a kernel that run at the same time, one per multiprocessor.
  virtual Result<int> multiprocessors(Device device) = 0;
  /// Returns how many bytes of shared memory a block can have (Grid::shared_bytes).
  virtual Result<std::size_t> max_shared_bytes(Device device) = 0;

  /// Memory aligned to 256 bytes. Not zeroed.
  virtual Result<void*> allocate(Device device, std::size_t bytes) = 0;
  virtual Status release(Device device, void* memory) = 0;
  /// Allocates pinned host memory. Kernels access it at the same address, and copies to and from it do not block the
  /// caller. `device`: any of the devices that use it; pass the same one to release_host().
  virtual Result<void*> allocate_host(Device device, std::size_t bytes) = 0;
  virtual Status release_host(Device device, void* memory) = 0;

  // Memory of other devices and processes.
  /// Gives kernels on `from` access to `bytes` at `memory`, which this process has on `to`. Fails with kUnsupported if
  /// that is impossible.
  virtual Status reach(Device from, Device to, void* memory, std::size_t bytes) = 0;
  /// `memory`: `bytes` in one allocation, from allocate(), or as virtual memory (cuMemCreate). For virtual memory
  /// `descriptor` receives a file descriptor that the other process needs as well. Fails with kUnsupported if the
  /// memory cannot be shared.
  virtual Result<MemoryHandle> share(Device device, void* memory, std::size_t bytes, UniqueFd& descriptor) = 0;
  /// Opens another process's memory for kernels on `device`. `descriptor`: -1 if share() gave none. Fails with
  /// kUnsupported if they cannot access it. It must not be used after its owner has released it.
  virtual Result<void*> open_shared(Device device, const MemoryHandle& handle, int descriptor) = 0;
  virtual Status close_shared(Device device, void* memory) = 0;

  // Multicast: one device creates it and each other device joins once. When all have joined, each binds its part.
  // When all are bound, kernels may use it.
  /// Rounds `bytes` up to a valid size of multicast memory for `devices` devices. Fails with kUnsupported, with the
  /// reason, if a device does not support multicast.
  virtual Result<std::size_t> multicast_bytes(Device device, int devices, std::size_t bytes) = 0;
  /// `descriptor`: receives the file descriptor with which the others join, in this process or another one of this
  /// host.
  virtual Result<Multicast> create_multicast(Device device, int devices, std::size_t bytes, UniqueFd& descriptor) = 0;
  virtual Result<Multicast> join_multicast(Device device, int descriptor, std::size_t bytes) = 0;
  /// Fills in the addresses of `joined`.
  virtual Status bind_multicast(Device device, Multicast& joined) = 0;
  /// REQUIRES: no kernel of any device uses it.
  virtual Status leave_multicast(Device device, const Multicast& joined) = 0;

  /// Makes `device` the calling thread's current device until pop_current(), for libraries that depend on it. Captures
  /// of other streams do not prevent the library's calls. Use CurrentDevice to call it.
  virtual Status push_current(Device device) = 0;
  /// Restores the thread's state from before push_current(): a thread that had used no device has none again.
  virtual void pop_current() = 0;

  // The following operations are queued in a stream of `device` and run in its order. The null stream is the device's
  // default stream.
  /// Copies in any direction between host and devices.
  virtual Status copy(void* to, const void* from, std::size_t bytes, Device device, Stream stream) = 0;
  virtual Status fill(void* memory, unsigned char value, std::size_t bytes, Device device, Stream stream) = 0;
  /// `arguments`: kernel.bytes bytes, which are copied. launch() of kernel.hpp checks the grid and calls this.
  virtual Status launch(const Kernel& kernel, const void* arguments, const Grid& grid, Device device,
                        Stream stream) = 0;
  virtual Status record(Event event, Device device, Stream stream) = 0;
  /// Makes later operations in `stream` wait for the latest record of `event`, which may be of any device.
  virtual Status wait(Event event, Device device, Stream stream) = 0;
  /// Blocks until all operations in the stream have completed.
  virtual Status synchronize(Device device, Stream stream) = 0;
  /// True if the stream is being captured into a graph. Operations put into it then run when the graph is launched,
  /// and its events must not be queried.
  virtual Result<bool> is_capturing(Device device, Stream stream) = 0;

  /// Identifies a stream among all streams of its kind of device that this process ever has, and is never 0. A handle
  /// may mean another stream in each thread, or belong to a later stream once its own was destroyed.
  virtual Result<std::uint64_t> stream_id(Device device, Stream stream) = 0;

  /// Captures what `body` puts into `stream`, which must not be a default stream, as a graph. Nothing of it runs yet.
  /// Uploads the graph to the device, so that no launch of it allocates memory or waits for other streams, and waits
  /// for earlier work in `stream`. If `body` fails, returns its error.
  virtual Result<Graph> capture(Device device, Stream stream, const std::function<Status()>& body) = 0;
  /// Launches of the same graph do not overlap.
  virtual Status launch_graph(Graph graph, Device device, Stream stream) = 0;
  /// REQUIRES: no launch of the graph is running.
  virtual Status destroy_graph(Graph graph) = 0;

  /// Creates a stream that does not wait for the default stream. `high_priority`: its work runs before other work, if
  /// the device supports priorities.
  virtual Result<Stream> create_stream(Device device, bool high_priority) = 0;
  virtual Status destroy_stream(Device device, Stream stream) = 0;
  /// Creates an event for ordering; it does not record times.
  virtual Result<Event> create_event(Device device) = 0;
  virtual Status destroy_event(Event event) = 0;
  /// True if the latest record of `event` has completed, or if it was never recorded. Never blocks.
  virtual Result<bool> has_happened(Event event) = 0;
};

/// Makes `device` the thread's current device for the lifetime of this object.
class CurrentDevice {
 public:
  CurrentDevice(Runtime& runtime, Device device) : runtime_(runtime), status_(runtime.push_current(device)) {}
  ~CurrentDevice() {
    if (status_.ok()) runtime_.pop_current();
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  /// If this is not ok, nothing was changed.
  const Status& status() const { return status_; }

 private:
  Runtime& runtime_;
  const Status status_;
};

/// Returns the runtime of `type`, whose viable() is ok. Fails with kUnsupported, with the reason, if this build or
/// this machine has none.
Result<Runtime*> runtime_of(DeviceType type);

/// Replaces this build's own runtime, for tests; null restores it.
void replace_runtime(DeviceType type, Runtime* runtime);

}  // namespace accord::device
