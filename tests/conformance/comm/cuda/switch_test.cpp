// Plans through the switch between this machine's GPUs, one rank on each. A single GPU only shows whether its driver
// accepts a multicast group of one device.
#include <gmock/gmock.h>

#include "accord/communicator.hpp"
#include "conformance/comm/cuda/nccl_ranks.hpp"
#include "device/cuda/runtime.hpp"
#include "device/device_memory.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using testing::OnDevice;

TEST(CudaSwitch, sums_and_copies_match_a_plain_computation) {
  device::Runtime& runtime = device::cuda::runtime();
  if (const Status viable = runtime.viable(); !viable.ok()) GTEST_SKIP() << viable.message();
  const int size = runtime.count();
  const Result<std::size_t> bytes = runtime.multicast_bytes({DeviceType::kCuda, 0}, size, 1 << 20);
  if (!bytes.ok()) GTEST_SKIP() << bytes.status().message();
  const CommunicatorOptions options{.timeout = std::chrono::seconds(60),
                                    .select = "all_reduce[memory=cuda]:0-inf=nvls;all_gather[memory=cuda]:0-inf=nvls"};
  testing::run_thread_ranks(size, options, [&](Communicator comm) {
    const Device device{DeviceType::kCuda, static_cast<std::int16_t>(comm.rank())};
    const OnDevice on{runtime, device, runtime.create_stream(device, false).value()};
    const auto ranks = static_cast<std::size_t>(size);
    for (const std::size_t count : {std::size_t{1}, std::size_t{1003}, std::size_t{4} << 20}) {
      std::vector<float> mine(count), sums(count), gathered(count * ranks);
      for (std::size_t i = 0; i < count; ++i) {
        mine[i] = static_cast<float>(i % 1000 + static_cast<std::size_t>(comm.rank()));
        sums[i] = static_cast<float>(ranks * (i % 1000) + ranks * (ranks - 1) / 2);
        for (std::size_t r = 0; r < ranks; ++r) gathered[r * count + i] = static_cast<float>(i % 1000 + r);
      }
      const DeviceArray values(on, mine, DType::kFloat32), whole(on, gathered, DType::kFloat32);
      ASSERT_TRUE(runtime.fill(whole.buffer().data, 0, whole.buffer().bytes(), device, on.stream).ok());
      ASSERT_TRUE(comm.all_gather(values.buffer(), whole.buffer(), {.stream = on.stream}).ok());
      ASSERT_TRUE(comm.all_reduce(values.buffer(), ReduceOp::kSum, {.stream = on.stream}).ok());
      EXPECT_EQ(values.values<float>(), sums) << count;
      EXPECT_EQ(whole.values<float>(), gathered) << count;
      ASSERT_TRUE(comm.barrier().ok());  // freeing memory waits for kernels, which may wait for this rank
    }
    comm.close();
    EXPECT_TRUE(runtime.destroy_stream(device, on.stream).ok());
  });
}

}  // namespace
}  // namespace accord
