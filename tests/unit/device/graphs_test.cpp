// Graphs of the devices over host memory: what a capture records, and which operations fail in it.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "device/device_memory.hpp"
#include "device/host_runtime.hpp"
#include "device/sample_kernels.hpp"

namespace accord::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(Graphs, run_captured_work_at_each_launch_and_not_before) {
  HostRuntime runtime(1);
  const Device device{DeviceType::kCuda, 0};
  const Stream stream = runtime.create_stream(device, false).value();
  {
    const OnDevice on{runtime, device, stream};
    const DeviceArray values(on, std::vector<float>(100, 3.0F), DType::kFloat32);
    auto* const data = static_cast<float*>(values.buffer().data);
    const Result<device::Graph> graph = runtime.capture(device, stream, [&] {
      return device::launch(runtime, Scale{data, 100, 2.0F}, {.blocks = 2}, device, stream);
    });
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    EXPECT_THAT(values.values<float>(), Each(3.0F));
    for (const float expected : {6.0F, 12.0F}) {
      ASSERT_TRUE(runtime.launch_graph(*graph, device, stream).ok());
      EXPECT_THAT(values.values<float>(), Each(expected));
    }
    EXPECT_EQ(runtime.live().graphs, 1);
    ASSERT_TRUE(runtime.destroy_graph(*graph).ok());
    EXPECT_FALSE(runtime.launch_graph(*graph, device, stream).ok());
  }
  EXPECT_TRUE(runtime.destroy_stream(device, stream).ok());
  EXPECT_EQ(runtime.live(), LiveObjects{});
}

// A rule of these devices for graphs that a program captures and launches itself.
TEST(Graphs, that_were_not_uploaded_wait_for_other_streams_at_their_first_launch) {
  HostRuntime runtime(1);
  runtime.set_first_launches_wait(true);
  const Device device{DeviceType::kCuda, 0};
  const Stream busy = runtime.create_stream(device, false).value(),
               stream = runtime.create_stream(device, false).value();
  ASSERT_TRUE(runtime.begin_capture(device, stream).ok());
  const Graph graph = runtime.end_capture(device, stream).value();
  std::atomic<bool> has_begun = false, is_launched = false;
  BusyStream hold = runtime.make_stream_busy(busy);
  std::thread launching([&] {
    has_begun = true;
    EXPECT_TRUE(runtime.launch(graph, stream).ok());
    is_launched = true;
  });
  while (!has_begun) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(is_launched);
  hold.release();
  launching.join();
  BusyStream again = runtime.make_stream_busy(busy);
  EXPECT_TRUE(runtime.launch(graph, stream).ok()) << "the second launch waits for nothing";
  again.release();
  for (const Stream each : {busy, stream}) EXPECT_TRUE(runtime.destroy_stream(device, each).ok());
}

TEST(Graphs, of_a_failing_body_return_its_error_and_the_stream_stays_usable) {
  HostRuntime runtime(1);
  const Device device{DeviceType::kCuda, 0};
  const Stream stream = runtime.create_stream(device, false).value();
  const Status failed =
      runtime.capture(device, stream, [] { return Status(StatusCode::kUnsupported, "not this one"); }).status();
  EXPECT_THAT(failed.message(), HasSubstr("not this one"));
  const Status spoilt = runtime.capture(device, stream, [&] { return runtime.synchronize(device, stream); }).status();
  EXPECT_FALSE(spoilt.ok());
  EXPECT_FALSE(runtime.is_capturing(device, stream).value());
  EXPECT_TRUE(runtime.synchronize(device, stream).ok());
  EXPECT_EQ(runtime.live().graphs, 0);
  EXPECT_TRUE(runtime.destroy_stream(device, stream).ok());
}

}  // namespace
}  // namespace accord::testing
