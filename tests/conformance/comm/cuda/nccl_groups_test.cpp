// Group features with NVIDIA's NCCL: CUDA graphs, windows, splits, and ranks that fail.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <csignal>
#include <cstdio>

#include "conformance/comm/cuda/nccl_ranks.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OnDevice;

class CudaNcclGroups : public testing::CudaNcclTest {
 protected:
  /// Returns the result of an all_reduce of ones.
  static float count(Communicator& comm, const OnDevice& on) {
    const DeviceArray values(on, std::vector<float>(500, 1.0F), DType::kFloat32);
    const Status status = comm.all_reduce(values.buffer(), ReduceOp::kSum, {.stream = on.stream});
    EXPECT_TRUE(status.ok()) << status.to_string();
    return values.values<float>()[499];
  }
  static Call sum(const DeviceArray& values) {
    return Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum);
  }
};

TEST_F(CudaNcclGroups, a_captured_graph_runs_its_calls_at_each_launch) {
  for (const int size : {1, 2}) {
    on_ranks(size, [](Communicator& comm, const OnDevice& on) {
      const float size_of_group = static_cast<float>(comm.size());
      ASSERT_EQ(count(comm, on), size_of_group);  // connects
      const DeviceArray values(on, std::vector<float>(500, 1.0F), DType::kFloat32);
      auto* const stream = static_cast<cudaStream_t>(on.stream.handle);
      ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
      ASSERT_TRUE(comm.all_reduce(values.buffer(), ReduceOp::kSum, {.stream = on.stream}).ok());
      Work work = comm.start(sum(values), {.stream = on.stream});
      ASSERT_TRUE(work.block(on.stream).ok());
      cudaGraph_t graph = nullptr;
      ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
      cudaGraphExec_t launched = nullptr;
      ASSERT_EQ(cudaGraphInstantiate(&launched, graph, 0), cudaSuccess);
      EXPECT_EQ(values.values<float>()[0], 1.0F) << "a captured call ran at once";
      float expected = 1.0F;
      for (int launch = 0; launch < 3; ++launch) {
        ASSERT_EQ(cudaGraphLaunch(launched, stream), cudaSuccess);
        expected *= size_of_group * size_of_group;
        EXPECT_EQ(values.values<float>(), std::vector<float>(500, expected));
      }
      ASSERT_EQ(cudaGraphExecDestroy(launched), cudaSuccess);
      ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
      EXPECT_EQ(count(comm, on), size_of_group);  // calls still work afterwards
    });
    if (testing::is_spawned_rank()) return;
  }
}

TEST_F(CudaNcclGroups, calls_use_the_memory_of_a_window) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    Result<DeviceWindow> window = comm.device_window(std::size_t{4} << 20, on.device);
    ASSERT_TRUE(window.ok()) << window.status().to_string();
    if (comm.rank() == 0) printf("the window is %s\n", std::string(to_string(window->use())).c_str());
    const Buffer part = window->buffer(1000, DType::kFloat32, 4096);
    const std::vector<float> ones(1000, 1.0F);
    ASSERT_TRUE(on.runtime.copy(part.data, ones.data(), part.bytes(), on.device, on.stream).ok());
    ASSERT_TRUE(comm.all_reduce(part, ReduceOp::kSum, {.stream = on.stream}).ok());
    std::vector<float> got(1000);
    ASSERT_TRUE(on.runtime.copy(got.data(), part.data, part.bytes(), on.device, on.stream).ok());
    on.synchronize();
    EXPECT_EQ(got, std::vector<float>(1000, 2.0F));
  });
}

TEST_F(CudaNcclGroups, memory_of_the_program_can_be_registered_wherever_it_comes_from) {
  for (const int size : {1, 2}) {
    on_ranks(size, [](Communicator& comm, const OnDevice& on) {
      const DeviceArray values(on, std::vector<float>(1 << 20, 1.0F), DType::kFloat32);  // by cudaMalloc
      const Result<DeviceWindow> window = comm.device_window(values.buffer());
      ASSERT_TRUE(window.ok()) << window.status().to_string();
      EXPECT_NE(window->use(), WindowUse::kSymmetric);
      ASSERT_TRUE(comm.all_reduce(values.buffer(), ReduceOp::kSum, {.stream = on.stream}).ok());
      EXPECT_EQ(values.values<float>().back(), static_cast<float>(comm.size()));
    });
    if (testing::is_spawned_rank()) return;
  }
}

TEST_F(CudaNcclGroups, a_split_group_makes_calls_in_its_parts) {
  on_ranks(4, [](Communicator& comm, const OnDevice& on) {
    ASSERT_EQ(count(comm, on), 4);
    Result<std::optional<Communicator>> part = comm.split(comm.rank() % 2, 0, {.name = "part"});
    ASSERT_TRUE(part.ok()) << part.status().to_string();
    EXPECT_EQ(count(**part, on), 2);
    EXPECT_EQ(count(comm, on), 4);
  });
}

TEST_F(CudaNcclGroups, a_missing_rank_is_named_and_the_stream_is_released) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ASSERT_EQ(count(comm, on), 2);
    if (comm.rank() == 0) {
      const DeviceArray values(on, std::vector<float>(500, 1.0F), DType::kFloat32);
      Work work = comm.start(sum(values), {.timeout = std::chrono::milliseconds(500), .stream = on.stream});
      const Status status = work.wait();
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
      EXPECT_THAT(status.ranks(), ElementsAre(1));
      on.synchronize();
    }
    while (comm.barrier().ok()) {
    }
    EXPECT_EQ(comm.status().code(), StatusCode::kTimeout);
  });
}

TEST_F(CudaNcclGroups, survivors_continue_without_a_killed_rank) {
  on_ranks(3,
           [](Communicator& comm, const OnDevice& on) {
             ASSERT_EQ(count(comm, on), 3);
             ASSERT_TRUE(comm.barrier().ok());
             if (comm.rank() == 1) ::raise(SIGKILL);
             const DeviceArray values(on, std::vector<float>(500, 1.0F), DType::kFloat32);
             const Status status = comm.start(sum(values), {.stream = on.stream}).wait();
             EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
             EXPECT_THAT(status.ranks(), ElementsAre(1));
             on.synchronize();
             Result<Communicator> smaller = comm.shrink("smaller");
             ASSERT_TRUE(smaller.ok()) << smaller.status().to_string();
             EXPECT_EQ(count(*smaller, on), 2);
           },
           {0, 128 + SIGKILL, 0});
}

}  // namespace
}  // namespace accord
