#pragma once
// Shared by the parts of bench_gpu.

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "accord/buffer.hpp"
#include "accord/communicator.hpp"
#include "accord/status.hpp"
#include "device/runtime.hpp"

namespace accord::bench {

inline constexpr int kSkipped = 77;

struct Options {
  int ranks = 1;
  /// Few calls of small sizes. The figures mean nothing; the run shows that everything starts.
  bool quick = false;
};

/// Where a rank's calls run.
struct Place {
  device::Runtime& runtime;
  Device device;
  Stream stream;
};

[[noreturn]] inline void fail(const std::string& message) {
  std::fprintf(stderr, "bench_gpu: %s\n", message.c_str());
  std::fflush(stdout);
  std::_Exit(1);  // other threads may be inside CUDA
}
inline void check(const Status& status) {
  if (!status.ok()) fail(status.to_string());
}
template <typename T>
T value_of(Result<T> result) {
  check(result.status());
  return *std::move(result);
}

/// Returns the GPUs' runtime, or that of the tests' devices (--devices). kUnsupported says why there are none.
Result<device::Runtime*> runtime();
/// Whether each of `ranks` ranks has a GPU of its own. Otherwise all use the first one.
bool each_has_a_gpu(int ranks);
/// Ok if the communicator has NCCL.
Status nccl();
/// Waits for everything in the rank's stream, then for the other ranks. Call it before anything that may wait for the
/// whole GPU, such as freeing memory.
void meet(Communicator& comm, const Place& place);

struct Figure {
  double device_us = 0;
  double host_us = 0;
};

/// Measures `put`, which enqueues one call on the stream: `calls` of them, three times. Returns the best time of a
/// call in the stream, by CUDA's events, and of its caller. (Tests' devices have no such events; there, the first is
/// the time until the stream is done.)
Figure measure(const Place& place, int calls, const std::function<void()>& put);
/// Measures `calls` calls in CUDA graphs of 20. All ranks call it.
Figure measure_in_graph(Communicator& comm, const Place& place, int calls, const std::function<void()>& put);

/// Prints one line of JSON. `as`: how ranks were started, as in placement_of().
void print(int ranks, const char* as, const std::string& operation, std::size_t bytes, const std::string& by,
           const Figure& figure);
/// "GPUs" if each rank has its own; "threads" if they share one.
const char* placement_of(int ranks);

enum class GpuUse {
  kShared,  ///< all ranks use the first GPU
  kApart,   ///< each rank uses its own, if each_has_a_gpu()
};

/// Runs `body` in a thread for each rank, with a communicator of its own and a new stream. Returns the first error,
/// which `body` returns on all ranks.
Status on_threads(int ranks, GpuUse use, const CommunicatorOptions& options,
                  const std::function<Status(Communicator&, const Place&)>& body);

// The parts. Each returns the exit code.
/// all_reduce of float32, by size, through the communicator and with NCCL's own functions. Ranks are processes that
/// NCCL takes for hosts, so that they can share the GPU. With one rank, the figures are the cost of a call; with
/// several, they include sockets and taking turns on the GPU. `arguments`: of this program, for the processes.
int run_processes(const Options& options, const std::vector<std::string>& arguments);
/// A rank's part of run_processes(), in its process.
int run_process(const Options& options);
/// Whether this process is one of those.
bool is_rank_process();
/// Sums of bfloat16 by accord's plans, and the norm of their rows. Ranks share the first GPU.
int run_threads(const Options& options);
/// Sums of bfloat16 by each plan and by NCCL, by size: the figures behind the default selection rules.
int run_thresholds(const Options& options);
/// Calls of an expert group beside an all_to_all and a copy of as many bytes.
int run_experts(const Options& options);

}  // namespace accord::bench
