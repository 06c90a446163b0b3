// How calls on devices relate to streams: the host never waits, order is kept, captures work.
#include <gmock/gmock.h>

#include "conformance/comm/host_devices.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using ::testing::HasSubstr;
using testing::OnDevice;

using cudaStream_t = void*;  // as in the CUDA runtime's header

// The example of docs/gpu.md; tests/python/docs/test_docs.py compares the two.
accord::Status sum_gradients(accord::Communicator& comm, float* gradients, std::size_t count, cudaStream_t stream) {
  const accord::Buffer buffer{gradients, count, accord::DType::kFloat32, {accord::DeviceType::kCuda, 0}};
  return comm.all_reduce(buffer, accord::ReduceOp::kSum, {.stream = {stream}});
}

class DeviceStreams : public testing::HostDevices {
 protected:
  static std::vector<float> of(float value) { return std::vector<float>(100, value); }
};

TEST_F(DeviceStreams, the_first_program_of_the_docs) {
  testing::run_thread_ranks(2, {.timeout = std::chrono::seconds(60)}, [](Communicator comm) {
    const Device device{DeviceType::kCuda, 0};
    const Stream stream = runtime().create_stream(device, false).value();
    {
      const OnDevice on{runtime(), device, stream};
      const DeviceArray gradients(on, of(static_cast<float>(comm.rank() + 1)), DType::kFloat32);
      ASSERT_TRUE(sum_gradients(comm, static_cast<float*>(gradients.buffer().data), 100, stream.handle).ok());
      EXPECT_EQ(gradients.values<float>(), of(3));
    }
    comm.close();
    EXPECT_TRUE(runtime().destroy_stream(device, stream).ok());
  });
}

TEST_F(DeviceStreams, a_call_returns_before_its_stream_reaches_it) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const DeviceArray values(on, of(1), DType::kFloat32);
    const CallOptions options{.stream = on.stream};
    ASSERT_TRUE(comm.all_reduce(values.buffer(), ReduceOp::kSum, options).ok());  // connects
    testing::BusyStream busy = runtime().make_stream_busy(on.stream);
    ASSERT_TRUE(comm.all_reduce(values.buffer(), ReduceOp::kSum, options).ok());
    const Work work = comm.start(Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum), options);
    EXPECT_FALSE(work.test());
    busy.release();
    Work waited = work;
    EXPECT_TRUE(waited.wait().ok());
    EXPECT_EQ(values.values<float>(), of(8));
  });
}

TEST_F(DeviceStreams, a_started_call_follows_earlier_work_of_its_stream_and_overlaps_later_work) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const DeviceArray values(on, of(1), DType::kFloat32);
    Work work = comm.start(Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum), {.stream = on.stream});
    const testing::BusyStream busy = runtime().make_stream_busy(on.stream);
    EXPECT_TRUE(work.wait().ok());  // although the stream is held back now
  });
}

TEST_F(DeviceStreams, messages_to_one_peer_do_not_wait_for_other_peers) {
  on_ranks(3, [](Communicator& comm, const OnDevice& on) {
    const DeviceArray values(on, of(static_cast<float>(comm.rank())), DType::kFloat32),
        got(on, of(-1), DType::kFloat32);
    const CallOptions options{.stream = on.stream};
    const ConstBuffer out = values.buffer();
    for (int round = 0; round < 2; ++round) {  // the first round connects
      if (comm.rank() == 0 && round == 1) {
        Work late = comm.start(Call::send(out, 1), options), soon = comm.start(Call::send(out, 2), options);
        EXPECT_TRUE(soon.wait().ok());
        ASSERT_TRUE(comm.barrier().ok());
        EXPECT_TRUE(late.wait().ok());
      } else if (comm.rank() == 0) {
        ASSERT_TRUE(comm.start(Call::send(out, 1), options).wait().ok());
        ASSERT_TRUE(comm.start(Call::send(out, 2), options).wait().ok());
      } else {
        if (round == 1 && comm.rank() == 1) {
          ASSERT_TRUE(comm.barrier().ok());
        }
        ASSERT_TRUE(comm.recv(got.buffer(), 0, 0, options).ok());
        EXPECT_EQ(got.values<float>(), of(0));
        if (round == 1 && comm.rank() == 2) {
          ASSERT_TRUE(comm.barrier().ok());
        }
      }
    }
  });
}

TEST_F(DeviceStreams, a_capture_holds_calls_and_each_launch_runs_them) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const DeviceArray sum(on, of(1), DType::kFloat32), whole(on, std::vector<float>(200), DType::kFloat32);
    const CallOptions options{.stream = on.stream};
    ASSERT_TRUE(comm.broadcast(sum.buffer(), 0, options).ok());  // connects
    on.synchronize();
    ASSERT_TRUE(runtime().begin_capture(on.device, on.stream).ok());
    ASSERT_TRUE(comm.all_reduce(sum.buffer(), ReduceOp::kSum, options).ok());
    Work work = comm.start(Call::all_gather(sum.buffer(), whole.buffer()), options);
    ASSERT_TRUE(work.block(on.stream).ok());
    const Result<testing::Graph> graph = runtime().end_capture(on.device, on.stream);
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    EXPECT_TRUE(work.wait().ok());  // nothing to wait for yet
    EXPECT_EQ(sum.values<float>(), of(1)) << "a captured call ran at once";
    for (int launch = 1; launch <= 5; ++launch) {
      ASSERT_TRUE(runtime().launch(*graph, on.stream).ok());
      EXPECT_EQ(sum.values<float>(), of(static_cast<float>(1 << launch)));
      EXPECT_EQ(whole.values<float>(), std::vector<float>(200, static_cast<float>(1 << launch)));
    }
    ASSERT_TRUE(comm.all_reduce(sum.buffer(), ReduceOp::kSum, options).ok());  // calls still work afterwards
    EXPECT_EQ(sum.values<float>(), of(64));
  });
}

TEST_F(DeviceStreams, a_call_started_beside_a_capture_that_holds_started_calls_is_rejected) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const DeviceArray sum(on, of(1), DType::kFloat32), other(on, of(1), DType::kFloat32);
    const Stream beside = runtime().create_stream(on.device, false).value();
    const Call captured = Call::all_reduce(sum.buffer(), sum.buffer(), ReduceOp::kSum),
               outside = Call::all_reduce(other.buffer(), other.buffer(), ReduceOp::kSum);
    ASSERT_TRUE(comm.run(captured, {.stream = on.stream}).ok());  // connects
    on.synchronize();
    ASSERT_TRUE(runtime().begin_capture(on.device, on.stream).ok());
    Work work = comm.start(captured, {.stream = on.stream});
    const Status rejected = comm.start(outside, {.stream = beside}).wait();
    EXPECT_EQ(rejected.code(), StatusCode::kWrongState) << rejected.to_string();
    EXPECT_THAT(rejected.message(), HasSubstr("start this one after that"));
    ASSERT_TRUE(work.block(on.stream).ok());
    const Result<testing::Graph> graph = runtime().end_capture(on.device, on.stream);
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    ASSERT_TRUE(runtime().launch(*graph, on.stream).ok());
    EXPECT_EQ(sum.values<float>(), of(4));
    EXPECT_TRUE(comm.start(outside, {.stream = beside}).wait().ok());
    EXPECT_EQ(other.values<float>(), of(2));
    EXPECT_TRUE(runtime().destroy_stream(on.device, beside).ok());
  });
}

TEST_F(DeviceStreams, a_capture_before_the_group_is_connected_is_rejected_and_the_group_stays_usable) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const DeviceArray sum(on, of(1), DType::kFloat32);
    const CallOptions options{.stream = on.stream};
    ASSERT_TRUE(runtime().begin_capture(on.device, on.stream).ok());
    const Status status = comm.all_reduce(sum.buffer(), ReduceOp::kSum, options);
    EXPECT_EQ(status.code(), StatusCode::kWrongState) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("the first call of a group connects"));
    EXPECT_TRUE(runtime().end_capture(on.device, on.stream).ok());
    ASSERT_TRUE(comm.all_reduce(sum.buffer(), ReduceOp::kSum, options).ok());
    EXPECT_EQ(sum.values<float>(), of(2));
  });
}

TEST_F(DeviceStreams, a_captured_call_does_not_share_the_copy_of_its_input) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const CallOptions options{.stream = on.stream};
    const float rank = static_cast<float>(comm.rank());
    const DeviceArray values(on, std::vector<float>{rank, rank + 10}, DType::kFloat32),
        more(on, of(1), DType::kFloat32);
    const Call swap = Call::all_to_all(values.buffer(), values.buffer());
    ASSERT_TRUE(comm.run(swap, options).ok());
    ASSERT_TRUE(comm.run(swap, options).ok());
    on.synchronize();
    ASSERT_TRUE(runtime().begin_capture(on.device, on.stream).ok());
    ASSERT_TRUE(comm.run(swap, options).ok());
    const Result<testing::Graph> graph = runtime().end_capture(on.device, on.stream);
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    const std::vector<float> before{rank, rank + 10}, after{10 * rank, 10 * rank + 1};
    for (int launch = 0; launch < 4; ++launch) {
      EXPECT_EQ(values.values<float>(), launch % 2 == 0 ? before : after);
      ASSERT_TRUE(runtime().launch(*graph, on.stream).ok());
      // A call that needs more memory, between launches.
      ASSERT_TRUE(comm.run(Call::all_to_all(more.buffer(), more.buffer()), options).ok());
    }
    EXPECT_EQ(values.values<float>(), before);
  });
}

TEST_F(DeviceStreams, a_launch_whose_peer_closed_ends_with_the_group) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const DeviceArray sum(on, of(1), DType::kFloat32);
    const CallOptions options{.stream = on.stream};
    ASSERT_TRUE(comm.broadcast(sum.buffer(), 0, options).ok());
    on.synchronize();
    ASSERT_TRUE(runtime().begin_capture(on.device, on.stream).ok());
    ASSERT_TRUE(comm.all_reduce(sum.buffer(), ReduceOp::kSum, options).ok());
    const testing::Graph graph = runtime().end_capture(on.device, on.stream).value();
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) return comm.abort("enough");
    ASSERT_TRUE(runtime().launch(graph, on.stream).ok());
    on.synchronize();  // ended by the abort of NCCL's communicator
    EXPECT_EQ(comm.state(), CommunicatorState::kFailed);
    EXPECT_THAT(comm.status().message(), HasSubstr("rank 1 aborted"));
  });
}

TEST_F(DeviceStreams, a_revoked_communicator_whose_calls_are_in_graphs_is_not_freed) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const DeviceArray sum(on, of(1), DType::kFloat32);
    const CallOptions options{.stream = on.stream};
    ASSERT_TRUE(comm.all_reduce(sum.buffer(), ReduceOp::kSum, options).ok());  // connects
    on.synchronize();
    const device::Graph graph =
        runtime()
            .capture(on.device, on.stream, [&] { return comm.all_reduce(sum.buffer(), ReduceOp::kSum, options); })
            .value();
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) comm.abort("enough");
    while (comm.barrier().ok()) {
    }
    comm.close();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // a thread of its own would free it
    EXPECT_EQ(testing::calls_of("ncclCommAbort"), 0);
    EXPECT_TRUE(runtime().destroy_graph(graph).ok());
  });
  EXPECT_EQ(testing::calls_of("ncclCommRevoke"), 2);
}

TEST_F(DeviceStreams, closing_waits_for_work_in_streams) {
  std::atomic<bool> released = false;
  on_ranks(2, [&](Communicator& comm, const OnDevice& on) {
    const DeviceArray values(on, of(1), DType::kFloat32);
    const CallOptions options{.stream = on.stream};
    ASSERT_TRUE(comm.all_reduce(values.buffer(), ReduceOp::kSum, options).ok());
    testing::BusyStream busy = runtime().make_stream_busy(on.stream);
    ASSERT_TRUE(comm.all_reduce(values.buffer(), ReduceOp::kSum, options).ok());
    std::thread later([&] {
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();
      released = true;
      busy.release();
    });
    comm.close();
    EXPECT_TRUE(released);
    later.join();
    EXPECT_EQ(values.values<float>(), of(4));
    EXPECT_EQ(comm.all_reduce(values.buffer(), ReduceOp::kSum, options).code(), StatusCode::kClosed);
    EXPECT_EQ(comm.start(Call::broadcast(values.buffer(), 0)).wait().code(), StatusCode::kClosed);
  });
}

}  // namespace
}  // namespace accord
