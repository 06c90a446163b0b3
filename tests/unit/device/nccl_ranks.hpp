#pragma once
// Ranks as threads with memory of the devices over host memory, for tests of the NCCL over those devices.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "device/host_runtime.hpp"
#include "device/nccl_abi.hpp"
#include "device/nccl_control.hpp"

namespace accord::testing {

inline Device cuda(int index) { return {DeviceType::kCuda, static_cast<std::int16_t>(index)}; }

/// `values` in a device's memory.
template <typename T>
class ValuesOnDevice {
 public:
  ValuesOnDevice(int device, const std::vector<T>& values) : device_(cuda(device)), count_(values.size()) {
    data_ = static_cast<T*>(HostRuntime::instance().allocate(device_, count_ * sizeof(T)).value());
    std::copy(values.begin(), values.end(), data_);
  }
  ~ValuesOnDevice() { EXPECT_TRUE(HostRuntime::instance().release(device_, data_).ok()); }
  ValuesOnDevice(const ValuesOnDevice&) = delete;
  ValuesOnDevice& operator=(const ValuesOnDevice&) = delete;

  T* data() { return data_; }
  std::vector<T> values() const { return {data_, data_ + count_}; }

 private:
  Device device_;
  std::size_t count_;
  T* data_ = nullptr;
};

/// Runs `body` on one thread per rank; the thread's current device is the rank.
inline void on_ranks(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&body, rank] {
      HostRuntime::set_current_device(rank);
      body(rank);
    });
  for (std::thread& thread : threads) thread.join();
}

inline nccl::ncclUniqueId new_id() {
  nccl::ncclUniqueId id;
  EXPECT_EQ(nccl::ncclGetUniqueId(&id), nccl::ncclSuccess);
  return id;
}

/// Does the same with a communicator of all ranks for each, destroyed at the end.
inline void with_communicators(int ranks, const std::function<void(int rank, nccl::ncclComm_t comm)>& body) {
  const nccl::ncclUniqueId id = new_id();
  on_ranks(ranks, [&](int rank) {
    nccl::ncclComm_t comm = nullptr;
    ASSERT_EQ(nccl::ncclCommInitRank(&comm, ranks, id, rank), nccl::ncclSuccess);
    body(rank, comm);
    ASSERT_EQ(nccl::ncclCommDestroy(comm), nccl::ncclSuccess);
  });
}

/// Returns once everything in the stream is done. A null stream is the device's default stream.
inline void synchronize(int device, Stream stream = {}) {
  ASSERT_TRUE(HostRuntime::instance().synchronize(cuda(device), stream).ok());
}

/// Fails if an object of this library is left at the end; resets what the test has set up.
struct NcclTest : ::testing::Test {
  void TearDown() override {
    EXPECT_EQ(live_nccl(), LiveNccl{});
    EXPECT_EQ(HostRuntime::instance().live(), LiveObjects{});
    reset_nccl();
  }
};

}  // namespace accord::testing
