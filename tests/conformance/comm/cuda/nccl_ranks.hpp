#pragma once
// Ranks as processes over NVIDIA's own NCCL, on the first GPU of the machine. NCCL takes one rank for each GPU of a host; told that each process is a host of
// its own, it takes several, which then talk by sockets.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "comm/nccl/library.hpp"
#include "conformance/comm/device_selection.hpp"
#include "device/cuda/runtime.hpp"
#include "device/device_memory.hpp"
#include "ranks/spawned_ranks.hpp"

namespace accord::testing {

/// The tests' programs name a library of their own by ACCORD_NCCL; this is NVIDIA's, for the loader if unset.
inline std::string real_nccl() {
  const char* const path = std::getenv("CUDA_TEST_NCCL");
  return path != nullptr ? path : "libnccl.so.2";
}

class CudaNcclTest : public ::testing::Test {
 protected:
  static constexpr Device kDevice{DeviceType::kCuda, 0};

  void SetUp() override {
    if (const Status viable = device::cuda::runtime().viable(); !viable.ok()) GTEST_SKIP() << viable.message();
    // Its functions call each other by names that the tests' own library has, too.
    if (dlopen(real_nccl().c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND) == nullptr) GTEST_SKIP() << dlerror();
    if (is_spawned_rank()) return;
    const Result<std::unique_ptr<const comm::nccl::Library>> nccl = comm::nccl::load(real_nccl());
    if (!nccl.ok()) GTEST_SKIP() << nccl.status().message();
  }

  /// `body` in a process for each rank, with a stream of its own. `codes`: what they exit with, where that is not 0.
  /// `select`: which backend serves calls.
  static void on_ranks(int size, const std::function<void(Communicator&, const OnDevice&)>& body,
                       std::vector<int> codes = {}, std::chrono::milliseconds timeout = std::chrono::seconds(60),
                       const char* select = kByNccl) {
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
