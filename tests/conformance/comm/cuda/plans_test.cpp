// Plans on a GPU. With ranks as processes, which take turns on the GPU, the whole suite runs, with few dtypes or, in a
// suite of its own, with all; with ranks as threads, whose kernels run side by side, the tests that need no NCCL.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <cmath>
#include <random>

#include "accord/peer_window.hpp"
#include "conformance/comm/cuda/channel_kernels.hpp"
#include "conformance/comm/cuda/nccl_ranks.hpp"
#include "conformance/comm/device_suite.hpp"
#include "ranks/thread_ranks.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using testing::OnDevice;

class CudaPlansBetweenProcesses : public testing::CudaNcclTest {
 protected:
  static void run(int size, const Check& check) {
    on_ranks(size, check, {}, std::chrono::seconds(60), testing::kByPlans);
  }
  static void check_all_reductions(Communicator& comm, const OnDevice& on) {
    EXPECT_GE(testing::check_device_reductions(comm, on), 8 * 8 + 5 * 6 + 2 * 3 + 7);
  }
  static void check_few_reductions(Communicator& comm, const OnDevice& on) {
    EXPECT_GE(testing::check_device_reductions_of_few_dtypes(comm, on), 8 + 2 * 5);
  }
};

class CudaPlansOfProcesses : public CudaPlansBetweenProcesses, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    CudaNcclTest::SetUp();
    if (GetParam() > 1) skip_unless_memory_opens();
  }
};

TEST_P(CudaPlansOfProcesses, calls_match_a_plain_computation) {
  const bool has_every_dtype = GetParam() == 1;
  run(GetParam(), all_of({{"reductions", has_every_dtype ? check_all_reductions : check_few_reductions},
                          {"data movement", has_every_dtype ? testing::check_device_data_movement
                                                            : testing::check_device_data_movement_of_few_dtypes},
                          {"works", testing::check_device_works},
                          {"prepared calls", testing::check_device_prepared}}));
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaPlansOfProcesses, ::testing::Values(1, 2, 4),
                         [](const auto& of) { return "of_" + std::to_string(of.param); });

/// Takes longer than all other suites of plans.
class CudaPlansOfEveryDType : public CudaPlansBetweenProcesses {
 protected:
  void SetUp() override {
    CudaNcclTest::SetUp();
    skip_unless_memory_opens();
  }
};

TEST_F(CudaPlansOfEveryDType, calls_match_a_plain_computation) {
  run(2, all_of({{"reductions", check_all_reductions}, {"data movement", testing::check_device_data_movement}}));
}

/// CUDA frees memory and destroys graphs only once the GPU is idle, and later work waits for that. So the ranks first
/// meet on the CPU while no call is in progress.
class CudaPlansOfThreads : public ::testing::TestWithParam<int> {
 protected:
  static constexpr Device kDevice{DeviceType::kCuda, 0};
  void SetUp() override {
    if (const Status viable = device::cuda::runtime().viable(); !viable.ok()) GTEST_SKIP() << viable.message();
  }
  static void on_ranks(const std::function<void(Communicator&, const OnDevice&)>& body) {
    const CommunicatorOptions options{
        .timeout = std::chrono::seconds(60), .select = testing::kByPlans, .hints = "max_ctas=8"};
    testing::run_thread_ranks(GetParam(), options, [&](Communicator comm) {
      device::Runtime& runtime = device::cuda::runtime();
      const Stream stream = runtime.create_stream(kDevice, false).value();
      body(comm, {runtime, kDevice, stream});
      comm.close();
      EXPECT_TRUE(runtime.destroy_stream(kDevice, stream).ok());
    });
  }
  static std::vector<float> some(int rank, std::size_t count) {
    std::mt19937 random(static_cast<unsigned>(rank) + 1);
    std::vector<float> values(count);
    for (float& value : values) value = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 30) - 40);
    return values;
  }
};

TEST_P(CudaPlansOfThreads, sums_are_bit_identical_to_the_cpu_at_every_size) {
  on_ranks([](Communicator& comm, const OnDevice& on) {
    constexpr std::size_t kMost = 300001;
    const std::vector<float> mine = some(comm.rank(), kMost);
    const DeviceArray values(on, mine, DType::kFloat32), output(on, std::vector<float>(kMost), DType::kFloat32);
    for (const std::size_t count : {1UL, 5UL, 256UL, 2048UL, 20000UL, kMost}) {
      std::vector<float> expected = mine;
      ASSERT_TRUE(comm.all_reduce(Buffer{expected.data(), count, DType::kFloat32}, ReduceOp::kSum).ok());
      std::fill(expected.begin() + static_cast<std::ptrdiff_t>(count), expected.end(), 0.0F);
      for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(on.runtime.fill(output.buffer().data, 0, output.buffer().bytes(), kDevice, on.stream).ok());
        ASSERT_TRUE(
            comm.all_reduce(values.part(0, count), output.part(0, count), ReduceOp::kSum, {.stream = on.stream}).ok());
        EXPECT_EQ(output.values<float>(), expected) << count;
      }
    }
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_P(CudaPlansOfThreads, a_graph_of_calls_may_be_launched_repeatedly) {
  on_ranks([](Communicator& comm, const OnDevice& on) {
    const auto stream = static_cast<cudaStream_t>(on.stream.handle);
    const DeviceArray values(on, std::vector<float>(2048, 1.0F), DType::kFloat32);
    const auto sum = [&] { return comm.all_reduce(values.buffer(), ReduceOp::kAvg, {.stream = on.stream}); };
    ASSERT_TRUE(sum().ok());
    on.synchronize();
    ASSERT_TRUE(comm.barrier().ok());
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(sum().ok());
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaGraphExec_t launches = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&launches, graph, 0), cudaSuccess);
    // Otherwise the first launch would upload it, and could wait for a kernel that waits for this rank.
    ASSERT_EQ(cudaGraphUpload(launches, stream), cudaSuccess);
    on.synchronize();
    ASSERT_TRUE(comm.barrier().ok());
    for (int i = 0; i < 100; ++i) ASSERT_EQ(cudaGraphLaunch(launches, stream), cudaSuccess);
    EXPECT_EQ(values.values<float>(), std::vector<float>(2048, 1.0F));
    ASSERT_TRUE(comm.barrier().ok());
    EXPECT_EQ(cudaGraphExecDestroy(launches), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  });
}

TEST_P(CudaPlansOfThreads, a_missing_peer_releases_the_stream) {
  if (GetParam() == 1) GTEST_SKIP() << "a single rank waits for no other";
  on_ranks([](Communicator& comm, const OnDevice& on) {
    const DeviceArray values(on, std::vector<float>(100, 1.0F), DType::kFloat32);
    ASSERT_TRUE(comm.all_reduce(values.buffer(), ReduceOp::kSum, {.stream = on.stream}).ok());
    on.synchronize();
    if (comm.rank() == 0) {
      const Call call = Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum);
      EXPECT_EQ(comm.start(call, {.timeout = std::chrono::milliseconds(300), .stream = on.stream}).wait().code(),
                StatusCode::kTimeout);
      on.synchronize();
    }
    while (comm.barrier().ok()) {
    }
  });
}

TEST_P(CudaPlansOfThreads, user_kernels_put_signal_and_wait) {
  if (GetParam() != 2) GTEST_SKIP() << "it is between two ranks";
  on_ranks([](Communicator& comm, const OnDevice& on) {
    constexpr std::size_t kCount = 1000;
    const PeerWindow window = PeerWindow::create(comm, kCount * sizeof(float), kDevice).value();
    const DeviceArray values(on, some(comm.rank(), kCount), DType::kFloat32);
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(comm.barrier().ok());
      ASSERT_EQ(testing::launch_exchange(window.channel(1 - comm.rank()),
                                         static_cast<const float*>(values.buffer().data), kCount, on.stream.handle),
                0);
      std::vector<float> found(kCount);
      on.synchronize();
      ASSERT_TRUE(
          on.runtime.copy(found.data(), window.memory(comm.rank()), kCount * sizeof(float), kDevice, on.stream).ok());
      on.synchronize();
      EXPECT_EQ(found, some(1 - comm.rank(), kCount));
    }
    ASSERT_TRUE(comm.barrier().ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CudaPlansOfThreads, ::testing::Values(1, 2, 4),
                         [](const auto& of) { return "of_" + std::to_string(of.param); });

}  // namespace
}  // namespace accord
