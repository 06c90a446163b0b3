// NVIDIA's devices: the errors where there are none, and the behavior where there are.
#include "device/cuda/runtime.hpp"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "device/cuda/driver.hpp"
#include "unit/device/kernel_suite.hpp"

namespace accord::device {
namespace {

using ::testing::HasSubstr;

constexpr Device kFirst{DeviceType::kCuda, 0};

TEST(CudaRuntime, without_a_device_reports_the_reason_and_every_call_fails) {
  Runtime& runtime = cuda::runtime();
  const Status viable = runtime.viable();
  if (viable.ok()) GTEST_SKIP() << "this machine has " << runtime.describe(kFirst).value();
  EXPECT_EQ(viable.code(), StatusCode::kUnsupported);
  EXPECT_THAT(viable.message(), HasSubstr("NVIDIA"));
  EXPECT_EQ(runtime_of(DeviceType::kCuda).status().message(), viable.message());
  EXPECT_EQ(runtime.count(), 0);

  int here = 0;
  EXPECT_FALSE(runtime.describe(kFirst).ok());
  EXPECT_FALSE(runtime.device_of(&here).ok());
  EXPECT_FALSE(runtime.mapped_memory(kFirst, &here, 4).ok());
  EXPECT_FALSE(runtime.allocate(kFirst, 8).ok());
  EXPECT_FALSE(runtime.release(kFirst, &here).ok());
  EXPECT_FALSE(runtime.allocate_host(kFirst, 8).ok());
  EXPECT_FALSE(runtime.release_host(kFirst, &here).ok());
  EXPECT_FALSE(runtime.push_current(kFirst).ok());
  EXPECT_FALSE(runtime.copy(&here, &here, 0, kFirst, {}).ok());
  EXPECT_FALSE(runtime.record({}, kFirst, {}).ok());
  EXPECT_FALSE(runtime.wait({}, kFirst, {}).ok());
  EXPECT_FALSE(runtime.synchronize(kFirst, {}).ok());
  EXPECT_FALSE(runtime.is_capturing(kFirst, {}).ok());
  EXPECT_FALSE(runtime.create_stream(kFirst, true).ok());
  EXPECT_FALSE(runtime.destroy_stream(kFirst, {}).ok());
  EXPECT_FALSE(runtime.create_event(kFirst).ok());
  EXPECT_FALSE(runtime.destroy_event({}).ok());
  EXPECT_FALSE(runtime.has_happened({}).ok());
  EXPECT_FALSE(runtime.multiprocessors(kFirst).ok());
  EXPECT_FALSE(runtime.max_shared_bytes(kFirst).ok());
  EXPECT_FALSE(runtime.reach(kFirst, {DeviceType::kCuda, 1}, &here, sizeof(here)).ok());
  UniqueFd descriptor;
  EXPECT_FALSE(runtime.share(kFirst, &here, sizeof(here), descriptor).ok());
  EXPECT_FALSE(runtime.open_shared(kFirst, {}, -1).ok());
  EXPECT_FALSE(runtime.close_shared(kFirst, &here).ok());
  EXPECT_FALSE(runtime.fill(&here, 0, 1, kFirst, {}).ok());
  const testing::Scale nothing{nullptr, 0, 1.0F};
  EXPECT_FALSE(device::launch(runtime, nothing, {}, kFirst, {}).ok());
}

struct CudaDevice : ::testing::Test {
  Runtime& runtime = cuda::runtime();
  std::vector<Stream> streams;

  void SetUp() override {
    if (const Status viable = runtime.viable(); !viable.ok()) GTEST_SKIP() << viable.message();
  }
  void TearDown() override {
    if (IsSkipped()) return;
    for (const Stream each : streams) EXPECT_TRUE(runtime.destroy_stream(kFirst, each).ok());
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }
  Stream stream(bool high_priority = false) {
    return streams.emplace_back(runtime.create_stream(kFirst, high_priority).value());
  }
  static cudaStream_t handle_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }
};

TEST_F(CudaDevice, kernels_run_in_their_stream) {
  testing::expect_kernels_run_in_their_stream({runtime, kFirst, stream()});
}
TEST_F(CudaDevice, threads_synchronize) { testing::expect_threads_synchronize({runtime, kFirst, stream()}); }
TEST_F(CudaDevice, concurrent_blocks_exchange_words) {
  testing::expect_concurrent_blocks_exchange_words({runtime, kFirst, stream()});
}
TEST_F(CudaDevice, a_new_kernel_starts_while_another_waits) {
  testing::expect_a_new_kernel_starts_while_another_waits({runtime, kFirst, stream()});
}
TEST_F(CudaDevice, kernels_that_start_early_see_earlier_ones) {
  testing::expect_kernels_that_start_early_see_earlier_ones({runtime, kFirst, stream()});
}
TEST_F(CudaDevice, a_captured_graph_starts_while_a_kernel_waits) {
  testing::expect_a_captured_graph_starts_while_a_kernel_waits({runtime, kFirst, stream()});
}
TEST_F(CudaDevice, invalid_grids_are_rejected) {
  testing::expect_invalid_grids_are_rejected({runtime, kFirst, stream()});
}
TEST_F(CudaDevice, warps_multiply_matrices) {
  testing::expect_warps_multiply_matrices<DType::kBFloat16>({runtime, kFirst, stream()});
  testing::expect_warps_multiply_matrices<DType::kFloat16>({runtime, kFirst, stream()});
}
TEST_F(CudaDevice, memory_is_filled) { testing::expect_memory_is_filled({runtime, kFirst, stream()}); }

TEST_F(CudaDevice, has_a_description_and_an_index_below_the_count) {
  EXPECT_THAT(runtime.describe(kFirst).value(), HasSubstr("compute capability"));
  const Device none{DeviceType::kCuda, static_cast<std::int16_t>(runtime.count())};
  EXPECT_FALSE(runtime.describe(none).ok());
  EXPECT_THAT(runtime.allocate(none, 8).status().message(), HasSubstr(to_string(none)));
  EXPECT_FALSE(runtime.allocate({DeviceType::kCpu, 0}, 8).ok());
  EXPECT_FALSE(runtime.push_current(none).ok());
}

TEST_F(CudaDevice, distinguishes_its_memory_from_host_memory) {
  auto* const memory = static_cast<char*>(runtime.allocate(kFirst, 1000).value());
  void* const host = runtime.allocate_host(kFirst, 8).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0);
  EXPECT_EQ(runtime.device_of(memory + 999).value(), kFirst);
  EXPECT_EQ(runtime.device_of(host).value(), std::nullopt);
  EXPECT_EQ(runtime.device_of(&runtime).value(), std::nullopt);
  EXPECT_EQ(runtime.device_of(nullptr).value(), std::nullopt);
  EXPECT_TRUE(runtime.release_host(kFirst, host).ok());
  EXPECT_TRUE(runtime.release(kFirst, memory).ok());
  EXPECT_EQ(runtime.release(kFirst, host).code(), StatusCode::kInternal);
}

TEST_F(CudaDevice, without_enough_memory_reports_the_requested_size) {
  const Status failed = runtime.allocate(kFirst, std::size_t{1} << 50).status();
  EXPECT_EQ(failed.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(failed.message(), HasSubstr("cuda:0"));
}

TEST_F(CudaDevice, copies_in_stream_order) {
  std::vector<int> from(10000), to(10000);
  std::iota(from.begin(), from.end(), 7);
  const std::size_t bytes = from.size() * sizeof(int);
  void* const memory = runtime.allocate(kFirst, bytes).value();
  void* const host = runtime.allocate_host(kFirst, bytes).value();
  for (const Stream each : {Stream{}, stream(), stream(true)}) {
    std::fill(to.begin(), to.end(), 0);
    ASSERT_TRUE(runtime.copy(memory, from.data(), bytes, kFirst, each).ok());
    ASSERT_TRUE(runtime.copy(host, memory, bytes, kFirst, each).ok());
    ASSERT_TRUE(runtime.copy(to.data(), host, bytes, kFirst, each).ok());
    ASSERT_TRUE(runtime.synchronize(kFirst, each).ok());
    EXPECT_EQ(to, from);
  }
  EXPECT_TRUE(runtime.release_host(kFirst, host).ok());
  EXPECT_TRUE(runtime.release(kFirst, memory).ok());
}

TEST_F(CudaDevice, a_stream_waits_for_an_event_of_another) {
  const std::size_t bytes = std::size_t{64} << 20;
  void* const memory = runtime.allocate(kFirst, bytes).value();
  const Event event = runtime.create_event(kFirst).value();
  EXPECT_TRUE(runtime.has_happened(event).value());
  const Stream first = stream(), second = stream();
  std::vector<char> from(bytes, 3);
  char last = 0;
  ASSERT_TRUE(runtime.copy(memory, from.data(), bytes, kFirst, first).ok());
  ASSERT_TRUE(runtime.record(event, kFirst, first).ok());
  ASSERT_TRUE(runtime.wait(event, kFirst, second).ok());
  ASSERT_TRUE(runtime.copy(&last, static_cast<char*>(memory) + bytes - 1, 1, kFirst, second).ok());
  ASSERT_TRUE(runtime.synchronize(kFirst, second).ok());
  EXPECT_EQ(last, 3);
  EXPECT_TRUE(runtime.has_happened(event).value());
  EXPECT_TRUE(runtime.destroy_event(event).ok());
  EXPECT_TRUE(runtime.release(kFirst, memory).ok());
}

TEST_F(CudaDevice, leaves_a_thread_without_a_current_device) {
  std::thread([&] {
    const auto current = [] {
      CUcontext context = nullptr;
      EXPECT_EQ(cuda::driver().value()->context_get_current(&context), CUDA_SUCCESS);
      return context;
    };
    const Event event = runtime.create_event(kFirst).value();
    EXPECT_TRUE(runtime.record(event, kFirst, {}).ok());
    EXPECT_TRUE(runtime.synchronize(kFirst, {}).ok());
    EXPECT_TRUE(runtime.has_happened(event).value());
    EXPECT_TRUE(runtime.destroy_event(event).ok());
    EXPECT_EQ(current(), nullptr);
    void* const host = runtime.allocate_host(kFirst, 8).value();
    EXPECT_TRUE(runtime.release_host(kFirst, host).ok());
    EXPECT_EQ(current(), nullptr);
    {
      const CurrentDevice scope(runtime, kFirst);
      ASSERT_TRUE(scope.status().ok());
      EXPECT_NE(current(), nullptr);
    }
    EXPECT_EQ(current(), nullptr);
  }).join();
}

TEST_F(CudaDevice, is_current_while_requested_and_restores_the_previous_one) {
  const Device last{DeviceType::kCuda, static_cast<std::int16_t>(runtime.count() - 1)};
  const auto current = [] {
    int index = -1;
    EXPECT_EQ(cudaGetDevice(&index), cudaSuccess);
    return index;
  };
  {
    const CurrentDevice scope(runtime, last);
    ASSERT_TRUE(scope.status().ok());
    EXPECT_EQ(current(), last.index);
    const Event event = runtime.create_event(kFirst).value();
    EXPECT_EQ(current(), last.index);
    EXPECT_TRUE(runtime.destroy_event(event).ok());
  }
  EXPECT_EQ(current(), 0);
}

TEST_F(CudaDevice, memory_of_a_peer_is_reached) {
  const Device last{DeviceType::kCuda, static_cast<std::int16_t>(runtime.count() - 1)};
  if (last == kFirst) GTEST_SKIP() << "this machine has one GPU";
  void* const memory = runtime.allocate(last, 64).value();
  const Status reached = runtime.reach(kFirst, last, memory, 64);
  EXPECT_TRUE(reached.ok() || reached.message().find("cannot access the memory of") != std::string::npos)
      << reached.to_string();
  EXPECT_TRUE(runtime.release(last, memory).ok());
}

TEST_F(CudaDevice, a_capture_records_copies_and_is_not_affected_by_other_work) {
  const Stream captured = stream(), other = stream();
  auto* const host = static_cast<int*>(runtime.allocate_host(kFirst, 2 * sizeof(int)).value());
  void* const memory = runtime.allocate(kFirst, sizeof(int)).value();
  host[0] = 7;
  host[1] = 0;
  EXPECT_FALSE(runtime.is_capturing(kFirst, captured).value());
  ASSERT_EQ(cudaStreamBeginCapture(handle_of(captured), cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_TRUE(runtime.is_capturing(kFirst, captured).value());
  EXPECT_FALSE(runtime.is_capturing(kFirst, other).value());
  ASSERT_TRUE(runtime.copy(memory, &host[0], sizeof(int), kFirst, captured).ok());
  const auto work = [&] {
    const Event event = runtime.create_event(kFirst).value();
    void* const more = runtime.allocate(kFirst, 64).value();
    EXPECT_TRUE(runtime.record(event, kFirst, other).ok());
    EXPECT_TRUE(runtime.synchronize(kFirst, other).ok());
    EXPECT_TRUE(runtime.has_happened(event).value());
    EXPECT_TRUE(runtime.release(kFirst, more).ok());
    EXPECT_TRUE(runtime.destroy_event(event).ok());
    // As a library does it.
    const CurrentDevice current(runtime, kFirst);
    EXPECT_EQ(cudaStreamSynchronize(handle_of(other)), cudaSuccess);
  };
  work();
  std::thread(work).join();
  ASSERT_TRUE(runtime.copy(&host[1], memory, sizeof(int), kFirst, captured).ok());
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(handle_of(captured), &graph), cudaSuccess);
  EXPECT_FALSE(runtime.is_capturing(kFirst, captured).value());
  EXPECT_EQ(host[1], 0);

  cudaGraphExec_t program = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&program, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(program, handle_of(captured)), cudaSuccess);
  ASSERT_TRUE(runtime.synchronize(kFirst, captured).ok());
  EXPECT_EQ(host[1], 7);
  EXPECT_EQ(cudaGraphExecDestroy(program), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_TRUE(runtime.release(kFirst, memory).ok());
  EXPECT_TRUE(runtime.release_host(kFirst, host).ok());
}

TEST_F(CudaDevice, using_the_default_stream_during_a_capture_of_a_blocking_stream_is_explained) {
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed), cudaSuccess);
  const Result<bool> capturing = runtime.is_capturing(kFirst, {});
  EXPECT_EQ(capturing.status().code(), StatusCode::kInternal);
  EXPECT_THAT(capturing.status().message(), HasSubstr("default stream"));
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

}  // namespace
}  // namespace accord::device
