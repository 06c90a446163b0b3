// Kernels on the devices over host memory.
#include "device/host_runtime.hpp"
#include "device/host_team.hpp"
#include "unit/device/kernel_suite.hpp"

namespace accord::testing {
namespace {

struct HostKernels : ::testing::Test {
  static constexpr Device kDevice{DeviceType::kCuda, 0};

  HostRuntime runtime{2};
  OnDevice on{runtime, kDevice, runtime.create_stream(kDevice, false).value()};
};

TEST_F(HostKernels, run_in_their_stream) { expect_kernels_run_in_their_stream(on); }
TEST_F(HostKernels, threads_synchronize) { expect_threads_synchronize(on); }
TEST_F(HostKernels, concurrent_blocks_exchange_words) { expect_concurrent_blocks_exchange_words(on); }
TEST_F(HostKernels, a_new_kernel_starts_while_another_waits) { expect_a_new_kernel_starts_while_another_waits(on); }
TEST_F(HostKernels, that_start_early_see_earlier_ones) { expect_kernels_that_start_early_see_earlier_ones(on); }

// In a graph, a kernel is in the stream when the one ahead of it begins.
TEST_F(HostKernels, that_read_before_they_wait_see_old_values) {
  if (!kTakeTurns) GTEST_SKIP() << "kernels do not start early";
  const DeviceArray values(on, std::vector<float>{3.0F, 0.0F}, DType::kFloat32);
  auto* const memory = static_cast<float*>(values.buffer().data);
  const Result<device::Graph> graph = runtime.capture(kDevice, on.stream, [&] {
    ACCORD_RETURN_IF_ERROR(device::launch(runtime, Scale{memory, 1, 2.0F}, {}, kDevice, on.stream));
    return device::launch(runtime, ReadTooEarly{memory, memory + 1}, {}, kDevice, on.stream);
  });
  ASSERT_TRUE(runtime.launch_graph(*graph, kDevice, on.stream).ok());
  EXPECT_EQ(values.values<float>(), (std::vector<float>{6.0F, 3.0F}));
  EXPECT_TRUE(runtime.destroy_graph(*graph).ok());
}

TEST_F(HostKernels, a_captured_graph_starts_while_a_kernel_waits) {
  runtime.set_first_launches_wait(true);
  expect_a_captured_graph_starts_while_a_kernel_waits(on);
}
TEST_F(HostKernels, invalid_grids_are_rejected) { expect_invalid_grids_are_rejected(on); }
TEST_F(HostKernels, warps_multiply_matrices) {
  expect_warps_multiply_matrices<DType::kBFloat16>(on);
  expect_warps_multiply_matrices<DType::kFloat16>(on);
}
TEST_F(HostKernels, memory_is_filled) { expect_memory_is_filled(on); }

TEST_F(HostKernels, an_unlisted_kernel_is_reported) {
  const int arguments = 0;
  const device::Kernel unlisted{.name = "unlisted", .bytes = sizeof(arguments), .threads = 1};
  EXPECT_THAT(device::launch(runtime, unlisted, &arguments, {.threads = 1}, kDevice, on.stream).message(),
              ::testing::HasSubstr("no kernel \"unlisted\""));
}

TEST_F(HostKernels, a_captured_launch_runs_when_its_graph_does) {
  const DeviceArray values(on, std::vector<float>(4, 1.0F), DType::kFloat32);
  auto* const memory = static_cast<float*>(values.buffer().data);
  ASSERT_TRUE(runtime.begin_capture(kDevice, on.stream).ok());
  ASSERT_TRUE(device::launch(runtime, Scale{memory, 4, 2.0F}, {}, kDevice, on.stream).ok());
  const Graph graph = runtime.end_capture(kDevice, on.stream).value();
  EXPECT_EQ(values.values<float>(), std::vector<float>(4, 1.0F));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(runtime.launch(graph, on.stream).ok());
  EXPECT_EQ(values.values<float>(), std::vector<float>(4, 8.0F));
}

}  // namespace
}  // namespace accord::testing
