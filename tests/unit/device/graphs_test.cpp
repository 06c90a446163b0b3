// Graphs of the devices over host memory: what a capture records, and which operations fail in it.
#include <gmock/gmock.h>

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
