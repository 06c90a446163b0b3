// Threads as ranks, and the time of their calls. On a GPU, events measure the time in a stream. They belong to CUDA's
// runtime; device::Event records no times.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "accord/store.hpp"
#include "bench/gpu/cuda/gpu.hpp"
#include "comm/nccl/library.hpp"
#include "device/cuda/runtime.hpp"

namespace accord::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Micros = std::chrono::duration<double, std::micro>;

/// Calls in a graph.
constexpr int kInGraph = 20;

void check(cudaError_t result) {
  if (result != cudaSuccess) fail(cudaGetErrorString(result));
}

/// The time between two points of a stream.
class StreamTimer {
 public:
  explicit StreamTimer(const Place& place) : place_(place), on_gpu_(&place.runtime == &device::cuda::runtime()) {
    if (!on_gpu_) return;
    check(cudaSetDevice(place.device.index));
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }
  ~StreamTimer() {
    if (!on_gpu_) return;
    check(cudaEventDestroy(begin_));
    check(cudaEventDestroy(end_));
  }
  StreamTimer(const StreamTimer&) = delete;

  void begin() {
    if (on_gpu_) return check(cudaEventRecord(begin_, handle()));
    bench::check(place_.runtime.synchronize(place_.device, place_.stream));
    began_ = Clock::now();
  }
  /// Waits for the stream. Returns microseconds since begin().
  double end() {
    if (!on_gpu_) {
      bench::check(place_.runtime.synchronize(place_.device, place_.stream));
      return Micros(Clock::now() - began_).count();
    }
    check(cudaEventRecord(end_, handle()));
    check(cudaEventSynchronize(end_));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return 1e3 * milliseconds;
  }

 private:
  cudaStream_t handle() const { return static_cast<cudaStream_t>(place_.stream.handle); }

  const Place& place_;
  const bool on_gpu_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  Clock::time_point began_;
};

}  // namespace

Result<device::Runtime*> runtime() { return device::runtime_of(DeviceType::kCuda); }

Status nccl() { return comm::nccl::library().status(); }

bool each_has_a_gpu(int ranks) { return value_of(runtime())->count() >= ranks; }

const char* placement_of(int ranks) { return ranks > 1 && each_has_a_gpu(ranks) ? "GPUs" : "threads"; }

void meet(Communicator& comm, const Place& place) {
  check(place.runtime.synchronize(place.device, place.stream));
  check(comm.barrier());
}

Figure measure(const Place& place, int calls, const std::function<void()>& put) {
  StreamTimer timer(place);
  Figure best{.device_us = 1e12, .host_us = 1e12};
  for (int round = 0; round < 4; ++round) {  // the first round is warm-up
    timer.begin();
    const Clock::time_point began = Clock::now();
    for (int i = 0; i < calls; ++i) put();
    const double host = Micros(Clock::now() - began).count() / calls;
    const double device = timer.end() / calls;
    if (round == 0) continue;
    best.host_us = std::min(best.host_us, host);
    best.device_us = std::min(best.device_us, device);
  }
  return best;
}

Figure measure_in_graph(Communicator& comm, const Place& place, int calls, const std::function<void()>& put) {
  put();  // connects: a capture cannot
  meet(comm, place);
  const device::Graph graph = value_of(place.runtime.capture(place.device, place.stream, [&] {
    for (int i = 0; i < kInGraph; ++i) put();
    return Status();
  }));
  check(comm.barrier());
  const Figure figure = measure(place, std::max(calls / kInGraph, 1),
                                [&] { check(place.runtime.launch_graph(graph, place.device, place.stream)); });
  meet(comm, place);
  check(place.runtime.destroy_graph(graph));  // which may wait for everything that runs on the GPU
  check(comm.barrier());
  return {figure.device_us / kInGraph, figure.host_us / kInGraph};
}

void print(int ranks, const char* as, const std::string& operation, std::size_t bytes, const std::string& by,
           const Figure& figure) {
  std::printf(R"({"ranks":%d,"as":"%s","what":"%s","bytes":%zu,"by":"%s","device_us":%.3f,"host_us":%.3f})"
              "\n",
              ranks, as, operation.c_str(), bytes, by.c_str(), figure.device_us, figure.host_us);
  std::fflush(stdout);
}

Status on_threads(int ranks, GpuUse use, const CommunicatorOptions& options,
                  const std::function<Status(Communicator&, const Place&)>& body) {
  device::Runtime& devices = *value_of(runtime());
  const bool apart = use == GpuUse::kApart && each_has_a_gpu(ranks);
  const std::shared_ptr<Store> store = make_memory_store();
  std::mutex mutex;
  Status first;
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Communicator comm = value_of(Communicator::create(store, rank, ranks, options));
      const Device device{DeviceType::kCuda, static_cast<std::int16_t>(apart ? rank : 0)};
      const Place place{devices, device, value_of(devices.create_stream(device, false))};
      const Status status = body(comm, place);
      {
        const std::lock_guard lock(mutex);
        if (first.ok()) first = status;
      }
      if (status.ok()) meet(comm, place);
      comm.close();
      check(devices.destroy_stream(device, place.stream));
    });
  for (std::thread& thread : threads) thread.join();
  return first;
}

}  // namespace accord::bench
