// bench_gpu [--look | --ranks N | --threads N] [--nccl PATH]: calls on the first GPU. Prints one line of JSON for
// each:
//   {"ranks":2,"as":"processes","what":"all_reduce of float32","bytes":1024,"by":"accord","device_us":..,"host_us":..}
// device_us: time between two events of the stream, per call. host_us: time of the caller to enqueue a call. Without
// a GPU or NCCL it prints the reason to standard error and exits with 77.
//
// --look: only describes the GPU.
// --ranks: all_reduce of float32, by size, through the communicator and with NCCL's own functions. Ranks are
// processes that NCCL takes for hosts, so that they can share the GPU. With one rank, the figures are the cost of a
// call; with several, they include sockets and taking turns on the GPU.
// --threads: sums of bfloat16 by accord's plans, and the norm of their rows (threads.cpp). The kernels of all
// ranks run side by side.
#include <cuda_runtime_api.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "accord/communicator.hpp"
#include "bench/gpu/cuda/gpu.hpp"
#include "comm/nccl/library.hpp"
#include "device/cuda/runtime.hpp"

namespace accord::bench {
namespace {

constexpr std::size_t kSizes[] = {8, 1 << 10, 32 << 10, 1 << 20, 16 << 20};

/// Creates a communicator of NCCL itself, beside accord's.
comm::nccl::Communicator* connect(Communicator& comm, const comm::nccl::Library& library) {
  comm::nccl::UniqueId id = {};
  if (comm.rank() == 0 && library.call.GetUniqueId(&id) != comm::nccl::kSuccess) fail("ncclGetUniqueId");
  check(comm.broadcast(Buffer{id.bytes, sizeof id.bytes, DType::kUInt8}, 0));
  comm::nccl::Config config;
  config.blocking = 1;
  comm::nccl::Communicator* created = nullptr;
  if (const int code = library.call.CommInitRankConfig(&created, comm.size(), id, comm.rank(), &config);
      code != comm::nccl::kSuccess)
    fail(library.failure("CommInitRankConfig", code).to_string());
  return created;
}

int run_rank() {
  const int rank = std::atoi(std::getenv("BENCH_RANK")), size = std::atoi(std::getenv("BENCH_SIZE"));
  const std::shared_ptr<Store> store = value_of(make_file_store(std::getenv("BENCH_STORE")));
  Communicator comm = value_of(Communicator::create(store, rank, size, {.timeout = std::chrono::seconds(60)}));
  device::Runtime& runtime = device::cuda::runtime();
  check(cudaSetDevice(kDevice.index));
  const Stream stream = value_of(runtime.create_stream(kDevice, false));
  auto* const handle = static_cast<cudaStream_t>(stream.handle);
  void* const memory = value_of(runtime.allocate(kDevice, kSizes[std::size(kSizes) - 1]));
  check(runtime.fill(memory, 0, kSizes[std::size(kSizes) - 1], kDevice, stream));
  const comm::nccl::Library& library = *value_of(comm::nccl::library());
  comm::nccl::Communicator* const own = connect(comm, library);

  for (const std::size_t bytes : kSizes) {
    const std::size_t count = bytes / sizeof(float);
    const int calls = size > 1 ? (bytes > (1 << 20) ? 5 : 20) : (bytes > (1 << 20) ? 50 : 500);
    const Buffer buffer{memory, count, DType::kFloat32, kDevice};
    const auto by_accord = [&] { check(comm.all_reduce(buffer, ReduceOp::kSum, {.stream = stream})); };
    const auto by_nccl = [&] {
      if (library.call.AllReduce(memory, memory, count, comm::nccl::kFloat32, comm::nccl::kSum, own, handle) !=
          comm::nccl::kSuccess)
        fail("ncclAllReduce");
    };
    for (const bool is_accord : {true, false}) {
      check(comm.barrier());
      const Figure figure =
          measure(handle, calls, is_accord ? std::function<void()>(by_accord) : std::function<void()>(by_nccl));
      if (rank == 0) {
        print(size, "processes", "all_reduce of float32", bytes, is_accord ? "accord" : "nccl", figure);
      }
    }
  }
  check(comm.barrier());
  (void)library.call.CommDestroy(own);
  check(runtime.release(kDevice, memory));
  comm.close();
  check(runtime.destroy_stream(kDevice, stream));
  return 0;
}

/// Starts processes for all ranks. Returns the worst of their exit codes.
int run_ranks(int size, const std::string& nccl) {
  std::string folder = (std::filesystem::temp_directory_path() / "bench-gpu-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) fail("no temporary folder can be created");
  for (const auto& [name, value] : {std::pair<const char*, std::string>{"BENCH_SIZE", std::to_string(size)},
                                    {"BENCH_STORE", folder + "/store"},
                                    {"ACCORD_NCCL", nccl},
                                    {"NCCL_SOCKET_IFNAME", "lo"},
                                    {"NCCL_IB_DISABLE", "1"}})
    setenv(name, value.c_str(), 1);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) {
    setenv("BENCH_RANK", std::to_string(rank).c_str(), 1);
    setenv("NCCL_HOSTID", ("bench-rank-" + std::to_string(rank)).c_str(), 1);
    std::string program = "/proc/self/exe";
    char* const arguments[] = {program.data(), nullptr};
    pid_t process = -1;
    if (posix_spawn(&process, program.c_str(), nullptr, nullptr, arguments, environ) != 0)
      fail("a process cannot be started");
    processes.push_back(process);
  }
  int worst = 0;
  for (const pid_t process : processes) {
    int status = 0;
    (void)waitpid(process, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  (void)unlink((folder + "/store").c_str());
  (void)rmdir(folder.c_str());
  return worst;
}

int skipped(const Status& why) {
  std::fprintf(stderr, "bench_gpu: skipped: %s\n", why.message().c_str());
  return kSkipped;
}

int list_device() {
  if (const Status viable = device::cuda::runtime().viable(); !viable.ok()) return skipped(viable);
  std::printf("%s\n", value_of(device::cuda::runtime().describe(kDevice)).c_str());
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  if (std::getenv("BENCH_RANK") != nullptr) return run_rank();
  if (arguments == std::vector<std::string>{"--look"}) return list_device();
  int ranks = 1, threads = 0;
  const char* const named = std::getenv("CUDA_TEST_NCCL");
  std::string nccl = named != nullptr ? named : "libnccl.so.2";
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    if (i + 1 == arguments.size() ||
        (arguments[i] != "--ranks" && arguments[i] != "--threads" && arguments[i] != "--nccl"))
      fail("usage: bench_gpu [--look | --ranks N | --threads N] [--nccl PATH]");
    if (arguments[i] == "--ranks") ranks = std::atoi(arguments[i + 1].c_str());
    if (arguments[i] == "--threads") threads = std::atoi(arguments[i + 1].c_str());
    if (arguments[i] == "--nccl") nccl = arguments[i + 1];
  }
  if (ranks < 1 || ranks > 64) fail("--ranks must be from 1 to 64");
  if (threads < 0 || threads > 8) fail("--threads must be from 1 to 8");
  const Status no_nccl = threads > 0 ? Status() : comm::nccl::load(nccl).status();
  for (const Status& missing : {device::cuda::runtime().viable(), no_nccl})
    if (!missing.ok()) return skipped(missing);
  return threads > 0 ? run_threads(threads) : run_ranks(ranks, nccl);
}

}  // namespace
}  // namespace accord::bench

int main(int count, char** arguments) {
  // With fewer connections, kernels that wait for each other may share a queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  return accord::bench::run({arguments + 1, arguments + count});
}
