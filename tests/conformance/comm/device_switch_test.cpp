// Calls on devices that go through a switch between them, and the plans that serve them where there is no switch.
#include <gmock/gmock.h>

#include "accord/plan.hpp"
#include "conformance/comm/host_devices.hpp"
#include "unit/plan/mscclpp_switch_plans.hpp"

namespace accord {
namespace {

using ::testing::Contains;
using testing::DeviceArray;
using ::testing::HasSubstr;
using testing::kByPlans;
using ::testing::Not;
using testing::OnDevice;

class DeviceSwitch : public testing::HostDevices {
 protected:
  static CommunicatorOptions through_switch() {
    return {.timeout = std::chrono::seconds(60),
            .select = std::string(kByPlans) +
                      ";broadcast[memory=cuda]:0-inf=nvls;all_gather[memory=cuda]:0-inf=nvls;"
                      "reduce_scatter[memory=cuda]:0-inf=nvls;all_reduce[memory=cuda]:0-inf=nvls",
            .hints = "max_ctas=3"};
  }
  /// Integers, so that sums are exact in any order.
  static std::vector<float> some(int rank, std::size_t count, std::size_t first = 0) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
      values[i] = static_cast<float>((first + i) % 1000 + 7 * static_cast<std::size_t>(rank));
    return values;
  }
  static std::vector<float> sums(int size, std::size_t count, std::size_t first = 0) {
    std::vector<float> sum(count, 0.0F);
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<float> its = some(rank, count, first);
      for (std::size_t i = 0; i < count; ++i) sum[i] += its[i];
    }
    return sum;
  }
  static void expect_sum(Communicator& comm, const OnDevice& on, std::size_t count = 1000) {
    const DeviceArray values(on, some(comm.rank(), count), DType::kFloat32);
    const Status status = comm.all_reduce(values.buffer(), ReduceOp::kSum, {.stream = on.stream});
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(values.values<float>(), sums(comm.size(), count)) << count;
  }
};

TEST_F(DeviceSwitch, collectives_match_a_plain_computation) {
  for (const int size : {1, 2, 3, 4}) {
    on_ranks(size, through_switch(), [](Communicator& comm, const OnDevice& on) {
      const CallOptions options{.stream = on.stream};
      const auto ranks = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
      for (const std::size_t count : {std::size_t{1}, std::size_t{1003}, std::size_t{60000}}) {
        expect_sum(comm, on, count);
        const DeviceArray mine(on, some(comm.rank(), count * ranks), DType::kFloat32);
        const DeviceArray part(on, std::vector<float>(count), DType::kFloat32);
        ASSERT_TRUE(comm.reduce_scatter(mine.buffer(), part.buffer(), ReduceOp::kSum, options).ok());
        EXPECT_EQ(part.values<float>(), sums(comm.size(), count, me * count));
        const DeviceArray whole(on, std::vector<float>(count * ranks), DType::kFloat32);
        ASSERT_TRUE(comm.all_gather(mine.part(0, count), whole.buffer(), options).ok());
        std::vector<float> gathered;
        for (int rank = 0; rank < comm.size(); ++rank)
          for (const float value : some(rank, count)) gathered.push_back(value);
        EXPECT_EQ(whole.values<float>(), gathered);
        ASSERT_TRUE(comm.broadcast(mine.buffer(), comm.size() - 1, options).ok());
        EXPECT_EQ(mine.values<float>(), some(comm.size() - 1, count * ranks));
      }
    });
  }
}

TEST_F(DeviceSwitch, mscclpp_execution_plans_run_through_the_switch) {
  for (const plan::testing::NamedText& named : plan::testing::switch_plans(2)) {
    const Result<std::string> json = import_mscclpp_plan(named.plan.text());
    ASSERT_TRUE(json.ok()) << json.status().to_string();
    ASSERT_TRUE(register_plan(*json, {.name = named.name, .bytes = ""}).ok());
    const bool adds = named.plan.json["collective"] == "allreduce";
    CommunicatorOptions options = through_switch();
    options.select += fmt::format(";{}[memory=cuda]:0-inf={}", adds ? "all_reduce" : "all_gather", named.name);
    on_ranks(2, options, [&](Communicator& comm, const OnDevice& on) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{1003}, std::size_t{60000}}) {
        if (adds) {
          expect_sum(comm, on, count);
          continue;
        }
        const DeviceArray mine(on, some(comm.rank(), count), DType::kFloat32);
        const DeviceArray whole(on, std::vector<float>(2 * count), DType::kFloat32);
        ASSERT_TRUE(comm.all_gather(mine.buffer(), whole.buffer(), {.stream = on.stream}).ok());
        std::vector<float> expected = some(0, count);
        for (const float value : some(1, count)) expected.push_back(value);
        EXPECT_EQ(whole.values<float>(), expected) << named.name << ", " << count;
      }
      const bool through_multicast = named.name != "switch_packets_all_gather";
      EXPECT_EQ(runtime().live().multicasts > 0, through_multicast) << named.name;
      ASSERT_TRUE(comm.barrier().ok());
    });
  }
}

TEST_F(DeviceSwitch, consecutive_calls_each_have_their_own_memory) {
  on_ranks(3, through_switch(), [](Communicator& comm, const OnDevice& on) {
    const DeviceArray values(on, std::vector<float>(5000, 1.0F), DType::kFloat32);
    for (int i = 0; i < 10; ++i)
      ASSERT_TRUE(comm.all_reduce(values.buffer(), ReduceOp::kSum, {.stream = on.stream}).ok());
    EXPECT_EQ(values.values<float>(), std::vector<float>(5000, 59049.0F));
  });
}

TEST_F(DeviceSwitch, without_multicast_the_previous_rule_is_used) {
  for (const char* const call :
       {"multicast_bytes", "identity", "create_multicast", "join_multicast", "bind_multicast"}) {
    for (const int which : {0, 1}) {
      if (call == std::string_view("join_multicast") && which == 0) continue;  // rank 0 creates instead
      if (call == std::string_view("create_multicast") && which == 1) continue;
      testing::clear_log();
      on_ranks(2, through_switch(), [&](Communicator& comm, const OnDevice& on) {
        if (comm.rank() == which) runtime().fail_next(call, Status(StatusCode::kUnsupported, "no switch here"));
        ASSERT_TRUE(comm.barrier().ok());
        expect_sum(comm, on);
        expect_sum(comm, on);
        EXPECT_EQ(comm.state(), CommunicatorState::kReady);
        const DeviceArray mine(on, some(comm.rank(), 10), DType::kFloat32);
        const DeviceArray whole(on, std::vector<float>(20), DType::kFloat32);
        EXPECT_TRUE(comm.all_gather(mine.buffer(), whole.buffer(), {.stream = on.stream}).ok())
            << "the switch is not requested again";
      });
      EXPECT_THAT(testing::log_of(0), Not(Contains(HasSubstr("ncclAllReduce")))) << call;
    }
  }
}

// Rank 0 has its sum and closes before rank 1 has begun its own, which reads rank 0's memory.
TEST_F(DeviceSwitch, close_waits_for_ranks_that_still_read_the_memory) {
  on_ranks(2, through_switch(), [](Communicator& comm, const OnDevice& on) {
    expect_sum(comm, on);
    const DeviceArray mine(on, some(comm.rank(), 2000), DType::kFloat32);
    const DeviceArray part(on, std::vector<float>(1000), DType::kFloat32);
    for (int i = 0; i < 20; ++i)
      ASSERT_TRUE(comm.reduce_scatter(mine.buffer(), part.buffer(), ReduceOp::kSum, {.stream = on.stream}).ok());
    if (comm.rank() == 0) on.synchronize();
    comm.close();
    EXPECT_EQ(part.values<float>(), sums(2, 1000, static_cast<std::size_t>(comm.rank()) * 1000));
  });
}

TEST_F(DeviceSwitch, ranks_that_share_a_gpu_do_not_use_the_switch) {
  on_ranks(2, through_switch(), [](Communicator& comm, const OnDevice& on) {
    const OnDevice shared{
        on.runtime, {DeviceType::kCuda, 0}, on.runtime.create_stream({DeviceType::kCuda, 0}, false).value()};
    expect_sum(comm, shared);
    EXPECT_EQ(runtime().live().multicasts, 0U);
    ASSERT_TRUE(comm.barrier().ok());
    EXPECT_TRUE(on.runtime.destroy_stream(shared.device, shared.stream).ok());
  });
}

TEST_F(DeviceSwitch, sums_that_the_switch_does_not_support_use_another_plan) {
  on_ranks(2, through_switch(), [](Communicator& comm, const OnDevice& on) {
    const DeviceArray values(on, some(comm.rank(), 100), DType::kFloat32);
    const Status status = comm.all_reduce(values.buffer(), ReduceOp::kMax, {.stream = on.stream});
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(values.values<float>(), some(1, 100));
    const DeviceArray means(on, some(comm.rank(), 100), DType::kFloat32);
    ASSERT_TRUE(comm.all_reduce(means.buffer(), ReduceOp::kAvg, {.stream = on.stream}).ok());
    std::vector<float> expected = sums(2, 100);
    for (float& value : expected) value /= 2;
    EXPECT_EQ(means.values<float>(), expected);
  });
}

}  // namespace
}  // namespace accord
