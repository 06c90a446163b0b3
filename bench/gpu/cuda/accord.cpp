// bench_gpu [--look | --processes N | --threads N | --thresholds N | --experts N] [--quick] [--devices LIBRARY]
// [--nccl PATH]: calls on GPUs, of N ranks. Prints one line of JSON for each:
//   {"ranks":2,"as":"threads","what":"all_reduce of bfloat16","bytes":1024,"by":"accord","device_us":..,"host_us":..}
// device_us: time in the stream, per call. host_us: time of the caller to enqueue a call. gpu.hpp says what the parts
// measure, and what --quick is for. Without a GPU, or NCCL where it is needed, it prints the reason to standard error
// and exits with 77.
//
// --look: describes the GPU, and runs a kernel on it.
// --nccl: uses this library of NCCL, as do ACCORD_NCCL and CUDA_TEST_NCCL.
// --devices: uses the tests' devices over host memory (libaccord_test_device.so) in place of GPUs.
#include <dlfcn.h>

#include <charconv>
#include <vector>

#include "bench/gpu/cuda/gpu.hpp"
#include "device/memory.hpp"

namespace accord::bench {
namespace {

constexpr const char* kUsage =
    "usage: bench_gpu [--look | --processes N | --threads N | --thresholds N | --experts N] [--quick] [--devices "
    "LIBRARY] [--nccl PATH]";
constexpr int kMaxRanks = 64;

int skipped(const Status& why) {
  std::fprintf(stderr, "bench_gpu: skipped: %s\n", why.message().c_str());
  return kSkipped;
}

void use_devices(const std::string& path) {
  void* const loaded = dlopen(path.c_str(), RTLD_NOW);
  if (loaded == nullptr) fail(dlerror());
  const auto use = reinterpret_cast<int (*)(const char*)>(dlsym(loaded, "accord_test_use_devices"));
  if (use == nullptr || use("libaccord.so.0") != 0) fail(path + " is not the library of the tests' devices");
}

int look(const Options& options) {
  std::printf("%s\n", value_of(value_of(runtime())->describe({DeviceType::kCuda, 0})).c_str());
  const CommunicatorOptions by_plan{.select = "deterministic=canonical", .hints = options.quick ? "max_ctas=2" : ""};
  check(on_threads(1, GpuUse::kShared, by_plan, [](Communicator& comm, const Place& place) -> Status {
    const device::Memory memory = value_of(device::Memory::allocate(place.runtime, place.device, 64, "a look"));
    const Buffer values{memory.data(), 16, DType::kFloat32, place.device};
    ACCORD_RETURN_IF_ERROR(place.runtime.fill(memory.data(), 0, 64, place.device, place.stream));
    ACCORD_RETURN_IF_ERROR(comm.all_reduce(values, ReduceOp::kSum, {.stream = place.stream}));
    return place.runtime.synchronize(place.device, place.stream);
  }));
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  Options options;
  std::string part = "--processes", devices;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--look") {
      part = name;
      continue;
    }
    if (name == "--quick") {
      options.quick = true;
      continue;
    }
    if (++i == arguments.size()) fail(kUsage);
    const std::string& value = arguments[i];
    if (name == "--devices") {
      devices = value;
    } else if (name == "--nccl") {
      setenv("ACCORD_NCCL", value.c_str(), 1);
    } else if (name == "--processes" || name == "--threads" || name == "--thresholds" || name == "--experts") {
      part = name;
      const char* const end = value.data() + value.size();
      const auto read = std::from_chars(value.data(), end, options.ranks);
      if (read.ec != std::errc() || read.ptr != end || options.ranks < 1 || options.ranks > kMaxRanks)
        fail(name + " must be from 1 to " + std::to_string(kMaxRanks));
    } else {
      fail(kUsage);
    }
  }
  if (!devices.empty()) use_devices(devices);
  if (const Status viable = runtime().status(); !viable.ok()) return skipped(viable);
  if (part == "--look") return look(options);
  if (part == "--threads") return run_threads(options);
  if (part == "--thresholds") return run_thresholds(options);
  if (part == "--experts") return run_experts(options);
  if (is_rank_process()) return run_process(options);
  if (const Status found = nccl(); !found.ok()) return skipped(found);
  return run_processes(options, arguments);
}

}  // namespace
}  // namespace accord::bench

int main(int count, char** arguments) {
  // With fewer connections, kernels that wait for each other may share a queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  // Before anything reads the environment.
  if (const char* const named = std::getenv("CUDA_TEST_NCCL")) setenv("ACCORD_NCCL", named, 0);
  return accord::bench::run({arguments + 1, arguments + count});
}
