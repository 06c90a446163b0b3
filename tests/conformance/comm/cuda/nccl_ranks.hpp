#pragma once
// Ranks as processes over NVIDIA's own NCCL, on the first GPU of the machine. NCCL accepts one rank per GPU of a
// host. If each process claims to be its own host, NCCL accepts several, which then communicate over sockets.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/nccl/library.hpp"
#include "conformance/comm/device_selection.hpp"
#include "device/cuda/runtime.hpp"
#include "device/device_memory.hpp"
#include "ranks/opened_memory.hpp"
#include "ranks/spawned_ranks.hpp"

namespace accord::testing {

/// Returns the path of NVIDIA's NCCL; if CUDA_TEST_NCCL is unset, a name that the loader searches for. (In the tests'
/// programs, ACCORD_NCCL names the tests' own library.)
inline std::string real_nccl() {
  const char* const path = std::getenv("CUDA_TEST_NCCL");
  return path != nullptr ? path : "libnccl.so.2";
}

class CudaNcclTest : public ::testing::Test {
 protected:
  static constexpr Device kDevice{DeviceType::kCuda, 0};

  void SetUp() override {
    if (const Status viable = device::cuda::runtime().viable(); !viable.ok()) GTEST_SKIP() << viable.message();
    open_memory_if_asked(device::cuda::runtime(), kDevice);
    // RTLD_DEEPBIND: NCCL's functions call each other by symbols that the tests' own library defines, too.
    if (dlopen(real_nccl().c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND) == nullptr) GTEST_SKIP() << dlerror();
    if (is_spawned_rank()) return;
    const Result<std::unique_ptr<const comm::nccl::Library>> nccl = comm::nccl::load(real_nccl());
    if (!nccl.ok()) GTEST_SKIP() << nccl.status().message();
  }

  /// Called by SetUp() of suites whose ranks use each other's memory: skips the test if a process cannot open that of
  /// another one.
  static void skip_unless_memory_opens() {
    if (IsSkipped() || is_spawned_rank()) return;
    static const Status opens = check_memory_opens(device::cuda::runtime(), kDevice);
    if (!opens.ok()) GTEST_SKIP() << opens.message();
  }

  using Check = std::function<void(Communicator&, const OnDevice&)>;

  /// A rank's part of several checks, one after the other. Starting processes takes longer than most checks, so they
  /// share them. The last name in the output is that of the check during which a process ended or hung.
  static Check all_of(std::vector<std::pair<std::string, Check>> checks) {
    return [checks = std::move(checks)](Communicator& comm, const OnDevice& on) {
      for (const auto& [name, check] : checks) {
        SCOPED_TRACE(name);
        if (comm.rank() == 0) std::printf("%s\n", name.c_str());
        std::fflush(stdout);
        check(comm, on);
        if (HasFatalFailure()) return;
      }
    };
  }

  /// Runs `body` in one process per rank, each with its own stream. `codes`: the expected exit codes, where they
  /// are not 0. `select`: the backend that serves calls.
  static void on_ranks(int size, const Check& body, std::vector<int> codes = {},
                       std::chrono::milliseconds timeout = std::chrono::seconds(60), const char* select = kByNccl) {
    if (!is_spawned_rank()) {
      const auto variables = [](Rank rank) {
        return std::vector<std::string>{"ACCORD_NCCL=" + real_nccl(), "NCCL_HOSTID=accord-rank-" + std::to_string(rank),
                                        "NCCL_SOCKET_IFNAME=lo", "NCCL_IB_DISABLE=1"};
      };
      spawn_ranks(size, variables, std::move(codes), std::chrono::seconds(120));
      return;
    }
    Result<Communicator> comm = spawned_communicator({.timeout = timeout, .select = select});
    ASSERT_TRUE(comm.ok()) << comm.status().to_string();
    device::Runtime& runtime = device::cuda::runtime();
    const Stream stream = runtime.create_stream(kDevice, false).value();
    body(*comm, {runtime, kDevice, stream});
    comm->close();
    EXPECT_TRUE(runtime.destroy_stream(kDevice, stream).ok());
  }
};

}  // namespace accord::testing
