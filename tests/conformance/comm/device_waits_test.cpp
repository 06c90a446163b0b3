// Kernels of plans wait for other ranks. What could never end is refused, or ends with an error.
#include <gmock/gmock.h>

#include <thread>

#include "conformance/comm/device_sums.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using ::testing::HasSubstr;
using testing::OnDevice;

class DeviceWaits : public testing::DeviceSums {};

/// CUDA holds up the calls of all threads while one copies to pageable memory behind a kernel. Here the kernel waits
/// for a rank that never calls.
TEST_F(DeviceWaits, a_failure_ends_a_kernel_for_which_a_copy_to_pageable_memory_waits) {
  runtime().set_pageable_copies_block(true);
  on_ranks(2, by_plans(), [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on);
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) {
      while (!runtime().is_copying({DeviceType::kCuda, 0})) std::this_thread::yield();
      return comm.abort("enough");
    }
    ASSERT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
    std::vector<float> found(64);
    const Buffer from = values.buffer();
    EXPECT_TRUE(runtime().copy(found.data(), from.data, from.bytes(), on.device, on.stream).ok());
    EXPECT_EQ(comm.barrier().code(), StatusCode::kAborted);
  });
  runtime().set_pageable_copies_block(false);
}

TEST_F(DeviceWaits, ranks_of_one_process_that_call_in_the_same_stream_are_refused) {
  const Device device{DeviceType::kCuda, 0};
  const Stream made = runtime().create_stream(device, false).value();
  for (const Stream stream : {Stream{}, made}) {
    testing::run_thread_ranks(3, by_plans(), [&](Communicator comm) {
      const Stream own = runtime().create_stream(device, false).value();
      {
        const OnDevice on{runtime(), device, own};
        const DeviceArray values = ones(on);
        (void)comm.run(sum(values), {.stream = comm.rank() == 1 ? own : stream});
        while (comm.barrier({.timeout = std::chrono::seconds(30)}).ok()) {
        }
        EXPECT_EQ(comm.status().code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(comm.status().message(), HasSubstr("ranks 0 and 2 put it into the same stream of cuda:0"));
        EXPECT_TRUE(runtime().synchronize(device, stream).ok());
        comm.close();
      }
      EXPECT_TRUE(runtime().destroy_stream(device, own).ok());
    });
  }
  EXPECT_TRUE(runtime().destroy_stream(device, made).ok());
}

/// Nothing of accord's goes into the default stream, for which they would wait.
TEST_F(DeviceWaits, ranks_on_one_device_may_use_blocking_streams) {
  const Device device{DeviceType::kCuda, 0};
  testing::run_thread_ranks(2, by_plans(), [&](Communicator comm) {
    const Stream own = runtime().create_stream(device, false).value();
    runtime().make_stream_blocking(own);
    {
      const OnDevice on{runtime(), device, own};
      const DeviceArray values = ones(on), large(on, std::vector<float>(20000, 1.0F), DType::kFloat32);
      for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(comm.run(sum(values), {.stream = own}).ok());
        ASSERT_TRUE(comm.start(sum(large), {.stream = own}).wait().ok());
      }
      EXPECT_EQ(values.values<float>(), std::vector<float>(64, 8.0F));
      EXPECT_EQ(large.values<float>(), std::vector<float>(20000, 8.0F));
      comm.close();
    }
    EXPECT_TRUE(runtime().destroy_stream(device, own).ok());
  });
}

TEST_F(DeviceWaits, a_graph_that_runs_beside_a_call_of_its_rank_is_an_error) {
  on_ranks(2, by_plans(), [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const Stream captured = runtime().create_stream(on.device, false).value();
    const DeviceArray first = ones(on), second = ones(on);
    const device::Graph graph =
        runtime().capture(on.device, captured, [&] { return comm.run(sum(first), {.stream = captured}); }).value();
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 0) {  // its kernels wait for rank 1
      ASSERT_TRUE(runtime().launch_graph(graph, on.device, captured).ok());
      ASSERT_TRUE(comm.run(sum(second), {.stream = on.stream}).ok());
    }
    while (comm.barrier({.timeout = std::chrono::seconds(30)}).ok()) {
    }
    EXPECT_EQ(comm.status().code(), StatusCode::kWrongState);
    EXPECT_THAT(comm.status().message(),
                HasSubstr("a launch of a graph and another call of this rank ran at the same time"));
    on.synchronize();
    EXPECT_TRUE(runtime().synchronize(on.device, captured).ok());
    EXPECT_TRUE(runtime().destroy_graph(graph).ok());
    EXPECT_TRUE(runtime().destroy_stream(on.device, captured).ok());
  });
}

}  // namespace
}  // namespace accord
