// Ranks as processes on the first GPU: all_reduce through the communicator and with NCCL's own functions.
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <vector>

#include "accord/store.hpp"
#include "bench/gpu/cuda/gpu.hpp"
#include "comm/nccl/library.hpp"
#include "device/memory.hpp"

namespace accord::bench {
namespace {

constexpr std::size_t kSizes[] = {8, 1 << 10, 32 << 10, 1 << 20, 16 << 20};
constexpr Device kDevice{DeviceType::kCuda, 0};

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

void measure_sums(Communicator& comm, const Place& place, const Options& options) {
  const std::size_t most = options.quick ? kSizes[1] : kSizes[std::size(kSizes) - 1];
  const device::Memory memory = value_of(device::Memory::allocate(place.runtime, place.device, most, "the benchmark"));
  check(place.runtime.fill(memory.data(), 0, most, place.device, place.stream));
  const comm::nccl::Library& library = *value_of(comm::nccl::library());
  const device::CurrentDevice current(place.runtime, place.device);
  check(current.status());
  comm::nccl::Communicator* const own = connect(comm, library);
  const int size = comm.size();
  for (const std::size_t bytes : kSizes) {
    if (bytes > most) break;
    const std::size_t count = bytes / sizeof(float);
    const bool is_large = bytes > (1 << 20);
    const int calls = options.quick ? 2 : size > 1 ? (is_large ? 5 : 20) : (is_large ? 50 : 500);
    const Buffer buffer{memory.data(), count, DType::kFloat32, place.device};
    const std::function<void()> by_accord = [&] {
      check(comm.all_reduce(buffer, ReduceOp::kSum, {.stream = place.stream}));
    };
    const std::function<void()> by_nccl = [&] {
      if (library.call.AllReduce(memory.data(), memory.data(), count, comm::nccl::kFloat32, comm::nccl::kSum, own,
                                 place.stream.handle) != comm::nccl::kSuccess)
        fail("ncclAllReduce");
    };
    for (const bool is_accord : {true, false}) {
      check(comm.barrier());
      const Figure figure = measure(place, calls, is_accord ? by_accord : by_nccl);
      if (comm.rank() == 0)
        print(size, "processes", "all_reduce of float32", bytes, is_accord ? "accord" : "nccl", figure);
    }
  }
  meet(comm, place);
  (void)library.call.CommDestroy(own);
}

}  // namespace

bool is_rank_process() { return std::getenv("BENCH_RANK") != nullptr; }

int run_process(const Options& options) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // the rank ends with the process that started it
  const int rank = std::atoi(std::getenv("BENCH_RANK")), size = std::atoi(std::getenv("BENCH_SIZE"));
  const std::shared_ptr<Store> store = value_of(make_file_store(std::getenv("BENCH_STORE")));
  Communicator comm = value_of(Communicator::create(store, rank, size, {.timeout = std::chrono::seconds(60)}));
  device::Runtime& devices = *value_of(runtime());
  const Place place{devices, kDevice, value_of(devices.create_stream(kDevice, false))};
  measure_sums(comm, place, options);
  comm.close();
  check(devices.destroy_stream(kDevice, place.stream));
  return 0;
}

int run_processes(const Options& options, const std::vector<std::string>& arguments) {
  std::string folder = (std::filesystem::temp_directory_path() / "bench-gpu-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) fail("no temporary folder can be created");
  for (const auto& [name, value] : {std::pair<const char*, std::string>{"BENCH_SIZE", std::to_string(options.ranks)},
                                    {"BENCH_STORE", folder + "/store"},
                                    {"NCCL_SOCKET_IFNAME", "lo"},
                                    {"NCCL_IB_DISABLE", "1"}})
    setenv(name, value.c_str(), 1);
  std::vector<std::string> words = {"/proc/self/exe"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> command;
  for (std::string& word : words) command.push_back(word.data());
  command.push_back(nullptr);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < options.ranks; ++rank) {
    setenv("BENCH_RANK", std::to_string(rank).c_str(), 1);
    setenv("NCCL_HOSTID", ("bench-rank-" + std::to_string(rank)).c_str(), 1);
    pid_t process = -1;
    if (posix_spawn(&process, command[0], nullptr, nullptr, command.data(), environ) != 0)
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

}  // namespace accord::bench
