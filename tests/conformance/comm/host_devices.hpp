#pragma once
// Ranks as threads with devices over host memory, and NCCL's symbols over those devices.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "accord/communicator.hpp"
#include "comm/device/memory_lease.hpp"
#include "conformance/comm/device_selection.hpp"
#include "device/device_memory.hpp"
#include "device/host_runtime.hpp"
#include "device/nccl_control.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord::testing {

/// Fails if an object of the devices or of NCCL is left at the end; resets what the test has set up.
class HostDevices : public ::testing::Test {
 protected:
  HostDevices() {
    runtime().set_count(8);
    device::replace_runtime(DeviceType::kCuda, &runtime());
  }
  ~HostDevices() override {
    // A thread of accord may hold the last work for a moment longer, or abort a communicator; another rank may close
    // later.
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const auto is_any_left = [] { return runtime().live() != LiveObjects{} || live_nccl() != LiveNccl{}; };
    while (is_any_left() && std::chrono::steady_clock::now() < late) {
      comm::release_waiting();
      std::this_thread::yield();
    }
    EXPECT_EQ(live_nccl(), LiveNccl{});
    EXPECT_EQ(runtime().live(), LiveObjects{});
    reset_nccl();
    device::replace_runtime(DeviceType::kCuda, nullptr);
  }

  static HostRuntime& runtime() { return HostRuntime::instance(); }

  /// Gives each rank a device and its own stream. If `options` have no selection, calls go to NCCL.
  static void on_ranks(int size, CommunicatorOptions options,
                       const std::function<void(Communicator&, const OnDevice&)>& body) {
    if (options.select.empty()) options.select = kByNccl;
    run_thread_ranks(size, options, [&](Communicator comm) {
      const Device device{DeviceType::kCuda, static_cast<std::int16_t>(comm.rank())};
      const Stream stream = runtime().create_stream(device, false).value();
      body(comm, {runtime(), device, stream});
      comm.close();
      EXPECT_TRUE(runtime().destroy_stream(device, stream).ok());
    });
  }
  static void on_ranks(int size, const std::function<void(Communicator&, const OnDevice&)>& body) {
    on_ranks(size, {.timeout = std::chrono::seconds(60)}, body);
  }
};

}  // namespace accord::testing
