// When a work on a device ends, for which callers, and with which status.
#include <gmock/gmock.h>

#include <atomic>
#include <optional>

#include "comm/group.hpp"
#include "conformance/comm/host_devices.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using ::testing::HasSubstr;
using testing::OnDevice;

class DeviceEndings : public testing::HostDevices {
 protected:
  static Call sum(const DeviceArray& values) {
    return Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum);
  }
  static DeviceArray ones(const OnDevice& on) { return DeviceArray(on, std::vector<float>(64, 1.0F), DType::kFloat32); }
};

TEST_F(DeviceEndings, every_concurrent_poller_sees_a_finished_work) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    std::atomic<bool> over = false;
    std::thread other([&] {
      while (!over) (void)comm.group()->device_channel().poll();
    });
    const DeviceArray values = ones(on);
    int late = 0;
    for (int i = 0; i < 2000; ++i) {
      Work work = comm.start(sum(values), {.stream = on.stream});
      EXPECT_TRUE(work.block(on.stream).ok());
      on.synchronize();
      if (!work.test()) ++late;
      EXPECT_TRUE(work.wait().ok());
    }
    over = true;
    other.join();
    EXPECT_EQ(late, 0) << "of 2000 works that were over";
  });
}

TEST_F(DeviceEndings, a_work_completes_while_another_call_of_the_rank_connects) {
  std::atomic<bool> checked = false;
  on_ranks(2, [&](Communicator& comm, const OnDevice& on) {
    const DeviceArray values = ones(on), got = ones(on);
    ASSERT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
    const testing::BusyStream busy = runtime().make_stream_busy(on.stream);
    Work work = comm.start(sum(values));
    if (comm.rank() == 0) {
      std::atomic<bool> begins = false;
      std::thread receiver([&] {
        begins = true;
        EXPECT_TRUE(comm.recv(got.buffer(), 1).ok());  // the first message with rank 1, which has not called yet
      });
      while (!begins) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!work.test() && std::chrono::steady_clock::now() < late) std::this_thread::yield();
      EXPECT_TRUE(work.test());
      checked = true;
      receiver.join();
    } else {
      while (!checked) std::this_thread::yield();
      ASSERT_TRUE(comm.send(values.buffer(), 0).ok());
    }
    EXPECT_TRUE(work.wait().ok());
    ASSERT_TRUE(runtime().synchronize(on.device, {}).ok());
  });
}

TEST_F(DeviceEndings, a_failed_call_fails_the_works_in_flight) {
  std::atomic<bool> failed = false;
  on_ranks(2, [&](Communicator& comm, const OnDevice& on) {
    const DeviceArray values = ones(on), more = ones(on);
    const CallOptions options{.stream = on.stream};
    for (const Status& status : {comm.run(sum(values), options), comm.barrier()}) ASSERT_TRUE(status.ok());
    if (comm.rank() == 1) {
      while (!failed) std::this_thread::yield();
      return;
    }
    for (int i = 0; i < 20; ++i) {
      Work early = comm.start(sum(values), options);  // rank 1 never joins this call
      testing::fail_next("ncclReduce", testing::nccl::ncclInternalError, 0);
      Work late = comm.start(Call::reduce(more.buffer(), more.buffer(), ReduceOp::kSum, 0), options);
      for (Work* const work : {&early, &late}) {
        const Status status = work->wait();
        EXPECT_FALSE(status.ok());
        EXPECT_THAT(status.message(), HasSubstr("ncclReduce"));
      }
    }
    failed = true;
    on.synchronize();
  });
}

TEST_F(DeviceEndings, closing_a_failed_group_ends_works_that_have_not_started) {
  on_ranks(1, [](Communicator& comm, const OnDevice& on) {
    const DeviceArray values = ones(on);
    ASSERT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
    for (int i = 0; i < 20; ++i) {
      Communicator part = **comm.split(0, 0, {.name = "part"});
      testing::BusyStream busy = runtime().make_stream_busy(on.stream);
      Work work = part.start(sum(values), {.stream = on.stream});
      part.abort("the user has had enough");
      part.close();
      const Status status = work.wait();
      EXPECT_EQ(status.code(), StatusCode::kAborted) << status.to_string();
      busy.release();
      on.synchronize();
    }
  });
}

TEST_F(DeviceEndings, a_released_group_closes_when_its_last_work_completes) {
  const OnDevice on{runtime(), {DeviceType::kCuda, 0}, runtime().create_stream({DeviceType::kCuda, 0}, false).value()};
  for (const bool waits : {true, false}) {
    const DeviceArray values(on, std::vector<float>(100, 1.0F), DType::kFloat32);
    testing::BusyStream busy = runtime().make_stream_busy(on.stream);
    std::optional<Work> work;
    {
      const CommunicatorOptions options{.timeout = std::chrono::seconds(60), .select = testing::kByNccl};
      Communicator comm = Communicator::create(make_memory_store(), 0, 1, options).value();
      const Call sum = Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum);
      work = comm.start(sum, {.stream = on.stream});
    }
    std::atomic<bool> has_ended = false;
    work->on_end([&](const Status& status) {
      EXPECT_TRUE(status.ok()) << status.to_string();
      has_ended = true;
      has_ended.notify_one();
    });
    if (!waits) work.reset();
    busy.release();
    if (work.has_value()) {
      EXPECT_TRUE(work->wait().ok());
    }
    has_ended.wait(false);  // the memory must live until then
  }
  EXPECT_TRUE(runtime().destroy_stream(on.device, on.stream).ok());
}

}  // namespace
}  // namespace accord
