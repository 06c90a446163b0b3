#pragma once
// Memory, streams and events of one type of device. What is above knows devices by this alone, so that a build without them is the same
// program; device/cuda has the one of NVIDIA's, tests have one over host memory.

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

/// What was captured of a stream, to be put into one again and again (a cudaGraphExec_t).
struct Graph {
  void* handle = nullptr;
};

/// What another process of this host needs to use memory of allocate() (a cudaIpcMemHandle_t).
struct MemoryHandle {
  std::array<unsigned char, 64> bytes = {};
};

/// A device's part of memory that a switch between devices reaches on all of them at once (NVSwitch's multicast).
struct Multicast {
  void* handle = nullptr;
  std::byte* own = nullptr;  ///< the part on this device, for copies and ordinary loads and stores; not zeroed
  std::byte* all =
      nullptr;  ///< stands for the parts of all devices: kernels write to them and add them up (Block::store_multicast, sum_multicast)
};

/// Thread-safe. No call but push_current() changes the calling thread's current device, and none begins a device that it does not name.
/// Errors name the call and what the device said of it; those of memory that is not there are kResourceExhausted, all others kInternal.
class Runtime {
 public:
  virtual ~Runtime() = default;

  /// Ok if there is a device to use; else kUnsupported says why not.
  virtual Status viable() = 0;
  /// Devices 0 to count() - 1; 0 where not viable().
  virtual int count() = 0;
  /// "NVIDIA H100, 80 GiB, 132 multiprocessors, compute capability 9.0".
  virtual Result<std::string> describe(Device device) = 0;
  /// What no other device of this host has, whichever process asks.
  virtual Result<std::string> identity(Device device) = 0;
  /// Where `memory` lies: nullopt for memory that no device knows.
  virtual Result<std::optional<Device>> device_of(const void* memory) = 0;
  /// How many blocks of a kernel run at the same time, one on each.
  virtual Result<int> multiprocessors(Device device) = 0;

  /// Aligned to 256 bytes. Not zeroed.
  virtual Result<void*> allocate(Device device, std::size_t bytes) = 0;
  virtual Status release(Device device, void* memory) = 0;
  /// Of the host, where kernels reach it at the same address, and copies to and from it do not block the caller.
  /// `device`: one of those that it is for; release_host() takes the same.
  virtual Result<void*> allocate_host(Device device, std::size_t bytes) = 0;
  virtual Status release_host(Device device, void* memory) = 0;

  // Memory of other devices and processes.
  /// Kernels on `from` reach memory of `to` from now on; kUnsupported if they cannot.
  virtual Status reach(Device from, Device to) = 0;
  /// `memory`: what allocate() gave.
  virtual Result<MemoryHandle> share(Device device, void* memory) = 0;
  /// That of another process, for kernels on `device`; kUnsupported if they cannot reach it. Not to be used once its owner has released it.
  virtual Result<void*> open_shared(Device device, const MemoryHandle& handle) = 0;
  virtual Status close_shared(Device device, void* memory) = 0;

  // Multicast: one device creates it and all others join, each once; when all have, each binds its part; when all have, kernels may use it.
  /// `bytes`, made as many as such memory of `devices` devices has to have; kUnsupported says why a device has none.
  virtual Result<std::size_t> multicast_bytes(Device device, int devices, std::size_t bytes) = 0;
  /// `descriptor`: what the others join with, in this process or another one of this host.
  virtual Result<Multicast> create_multicast(Device device, int devices, std::size_t bytes, UniqueFd& descriptor) = 0;
  virtual Result<Multicast> join_multicast(Device device, int descriptor, std::size_t bytes) = 0;
  /// Gives the addresses.
  virtual Status bind_multicast(Device device, Multicast& joined) = 0;
  /// REQUIRES: no kernel of any device uses it.
  virtual Status leave_multicast(Device device, const Multicast& joined) = 0;

  /// Makes it the calling thread's current one, for libraries that look at that, until pop_current() (CurrentDevice calls it).
  virtual Status push_current(Device device) = 0;
  /// The thread's current device is what it was before push_current(): a thread that had used none has none again.
  virtual void pop_current() = 0;

  // What follows is put into a stream of `device` and happens in its order; the null stream is the device's default.
  /// In any direction.
  virtual Status copy(void* to, const void* from, std::size_t bytes, Device device, Stream stream) = 0;
  virtual Status fill(void* memory, unsigned char value, std::size_t bytes, Device device, Stream stream) = 0;
  /// `arguments`: kernel.bytes of them, which are copied. launch() of kernel.hpp checks the grid and calls this.
  virtual Status launch(const Kernel& kernel, const void* arguments, const Grid& grid, Device device,
                        Stream stream) = 0;
  virtual Status record(Event event, Device device, Stream stream) = 0;
  /// What comes later in `stream` begins after what was last recorded as `event`, of any device.
  virtual Status wait(Event event, Device device, Stream stream) = 0;
  /// Blocks until all that is in the stream has happened.
  virtual Status synchronize(Device device, Stream stream) = 0;
  /// Whether the stream is being captured into a graph: then what is put into it happens when that is launched, and no event of it may be
  /// asked for.
  virtual Result<bool> is_capturing(Device device, Stream stream) = 0;

  /// What `body` puts into `stream`, not a default one, as a graph: none of it happens now. If body fails, its error.
  virtual Result<Graph> capture(Device device, Stream stream, const std::function<Status()>& body) = 0;
  /// Launches of one graph do not overlap.
  virtual Status launch_graph(Graph graph, Device device, Stream stream) = 0;
  /// REQUIRES: no launch of it is under way.
  virtual Status destroy_graph(Graph graph) = 0;

  /// One that does not wait for the default stream. `high_priority`: before others, where the device knows such an order.
  virtual Result<Stream> create_stream(Device device, bool high_priority) = 0;
  virtual Status destroy_stream(Device device, Stream stream) = 0;
  /// For order, not for times.
  virtual Result<Event> create_event(Device device) = 0;
  virtual Status destroy_event(Event event) = 0;
  /// True once what was last recorded as `event` has happened, or if nothing was. Never blocks.
  virtual Result<bool> has_happened(Event event) = 0;
};

/// `device` is the thread's current one while this lives.
class CurrentDevice {
 public:
  CurrentDevice(Runtime& runtime, Device device) : runtime_(runtime), status_(runtime.push_current(device)) {}
  ~CurrentDevice() {
    if (status_.ok()) runtime_.pop_current();
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  /// Not ok: nothing was changed.
  const Status& status() const { return status_; }

 private:
  Runtime& runtime_;
  const Status status_;
};

/// That of `type`, whose viable() is ok; kUnsupported says why there is none: this build has none, or the machine.
Result<Runtime*> runtime_of(DeviceType type);

/// In the place of this build's own, for tests; null gives that back.
void replace_runtime(DeviceType type, Runtime* runtime);

}  // namespace accord::device
