// If a group was connected on devices, so is the group that remains of it: by ncclCommShrink() if NCCL has it,
// otherwise anew.
#include <gmock/gmock.h>

#include <atomic>

#include "conformance/comm/host_devices.hpp"
#include "conformance/comm/other_nccl.hpp"

namespace accord {
namespace {

using testing::DeviceArray;

using testing::OnDevice;
namespace nccl = testing::nccl;

class DeviceShrink : public testing::HostDevices {
 protected:
  /// Returns the result of an all_reduce of ones.
  static float count(Communicator& comm, const OnDevice& on) {
    const DeviceArray values(on, std::vector<float>(5, 1.0F), DType::kFloat32);
    const Status status = comm.all_reduce(values.buffer(), ReduceOp::kSum, {.stream = on.stream});
    EXPECT_TRUE(status.ok()) << status.to_string();
    return values.values<float>()[4];
  }
  /// Three ranks, of which rank 1 leaves. The others shrink after a call that rank 1 does not join (kFailure), or
  /// without such a call (kNothing).
  enum class After { kFailure, kNothing };
  static void shrink_without_rank_1(After after, const std::function<void(Communicator&)>& before = {}) {
    std::atomic<int> waiting = 0;
    on_ranks(3, {.timeout = std::chrono::seconds(4)}, [&](Communicator& comm, const OnDevice& on) {
      ASSERT_EQ(count(comm, on), 3);
      ASSERT_TRUE(comm.barrier().ok());
      if (comm.rank() == 1) {
        while (after == After::kFailure && waiting < 2) std::this_thread::yield();
        return;  // closes its communicator
      }
      const DeviceArray values(on, std::vector<float>(5, 1.0F), DType::kFloat32);
      if (after == After::kFailure) {
        const Call sum = Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum);
        Work work = comm.start(sum, {.stream = on.stream});
        ++waiting;
        EXPECT_EQ(work.wait().code(), StatusCode::kPeerLost);
        on.synchronize();
      }
      if (before) before(comm);
      Result<Communicator> smaller = comm.shrink("smaller");
      ASSERT_TRUE(smaller.ok()) << smaller.status().to_string();
      EXPECT_EQ(smaller->rank(), comm.rank() / 2);
      EXPECT_EQ(count(*smaller, on), 2);
      const DeviceArray root_rank(on, std::vector<std::int32_t>(1, comm.rank()), DType::kInt32);
      ASSERT_TRUE(smaller->broadcast(root_rank.buffer(), 1, {.stream = on.stream}).ok());
      EXPECT_EQ(root_rank.values<std::int32_t>()[0], 2);
    });
  }
  static bool called(const std::string& prefix) {
    const std::vector<std::string> log = testing::log_of(0);
    return std::any_of(log.begin(), log.end(), [&](const std::string& line) { return line.find(prefix) == 0; });
  }
};

TEST_F(DeviceShrink, a_healthy_group_shrinks_its_communicator) {
  shrink_without_rank_1(After::kNothing);
  EXPECT_TRUE(called("ncclCommShrink rank=0 exclude=1 flags=0 blocking=1"));
  EXPECT_FALSE(called("ncclCommRevoke"));
}

TEST_F(DeviceShrink, a_failed_group_revokes_its_communicator_and_shrinks_it) {
  shrink_without_rank_1(After::kFailure);
  EXPECT_TRUE(called("ncclCommRevoke rank=0 flags=0"));
  EXPECT_TRUE(called("ncclCommShrink rank=0 exclude=1 flags=1 blocking=1"));
}

TEST_F(DeviceShrink, versions_without_revoke_reconnect_a_failed_group) {
  const testing::OtherNccl other(22700);
  shrink_without_rank_1(After::kFailure);
  EXPECT_FALSE(called("ncclCommShrink"));
  EXPECT_FALSE(called("ncclCommRevoke"));
  testing::clear_log();
  shrink_without_rank_1(After::kNothing);
  EXPECT_TRUE(called("ncclCommShrink rank=0 exclude=1 flags=0"));
}

TEST_F(DeviceShrink, versions_without_shrink_reconnect) {
  const testing::OtherNccl other(22600);
  shrink_without_rank_1(After::kNothing);
  shrink_without_rank_1(After::kFailure);
  EXPECT_FALSE(called("ncclCommShrink"));
}

TEST_F(DeviceShrink, a_communicator_that_nccl_does_not_revoke_is_aborted_and_reconnected) {
  for (const bool hangs : {false, true}) {
    testing::set_blocking(!hangs);  // another communicator can be aborted during the revocation
    for (const int rank : {0, 2}) {
      if (hangs) {
        testing::hang_next("ncclCommRevoke", rank);
      } else {
        testing::fail_next("ncclCommRevoke", nccl::ncclInternalError, rank);
      }
    }
    shrink_without_rank_1(After::kFailure);
    EXPECT_FALSE(called("ncclCommShrink"));
    EXPECT_TRUE(called("ncclCommAbort"));
    testing::clear_log();
  }
}

TEST_F(DeviceShrink, a_revocation_that_waits_for_kernels_of_the_program_makes_the_group_reconnect) {
  std::atomic<int> waiting = 0;
  on_ranks(3, {.timeout = std::chrono::seconds(20)}, [&](Communicator& comm, const OnDevice& on) {
    ASSERT_EQ(count(comm, on), 3);
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) {
      while (waiting < 2) std::this_thread::yield();
      return;  // closes its communicator
    }
    const DeviceArray values(on, std::vector<float>(5, 1.0F), DType::kFloat32);
    testing::BusyStream busy = runtime().make_stream_busy(on.stream);
    const Call sum = Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum);
    Work work = comm.start(sum, {.stream = on.stream});
    ++waiting;
    EXPECT_EQ(work.wait().code(), StatusCode::kPeerLost);
    Result<Communicator> smaller = comm.shrink("smaller");
    ASSERT_TRUE(smaller.ok()) << smaller.status().to_string();
    const Stream other = on.runtime.create_stream(on.device, false).value();
    EXPECT_EQ(count(*smaller, {on.runtime, on.device, other}), 2);
    EXPECT_TRUE(on.runtime.destroy_stream(on.device, other).ok());
    busy.release();
    on.synchronize();
  });
  EXPECT_TRUE(called("ncclCommRevoke"));
  EXPECT_FALSE(called("ncclCommShrink"));
  EXPECT_EQ(testing::aborts_during_calls(), 0);
}

TEST_F(DeviceShrink, a_shrink_that_hangs_on_one_rank_reconnects_all_ranks) {
  for (const After after : {After::kNothing, After::kFailure}) {
    shrink_without_rank_1(after, [](Communicator& comm) {
      if (comm.rank() == 2) testing::hang_next("ncclCommShrink", 2);
    });
    EXPECT_TRUE(called("ncclCommShrink"));
    testing::reset_nccl();
  }
}

TEST_F(DeviceShrink, a_shrink_that_fails_on_one_rank_reconnects_all_ranks) {
  shrink_without_rank_1(After::kNothing, [](Communicator& comm) {
    if (comm.rank() == 2) testing::fail_next("ncclCommShrink", nccl::ncclSystemError, 2);
  });
  EXPECT_TRUE(called("ncclCommShrink"));
}

TEST_F(DeviceShrink, a_rank_that_never_called_on_a_device_makes_all_ranks_reconnect) {
  on_ranks(3, [](Communicator& comm, const OnDevice& on) {
    if (comm.rank() == 1) return;
    while (comm.gone().empty()) std::this_thread::yield();
    Result<Communicator> smaller = comm.shrink("smaller");
    ASSERT_TRUE(smaller.ok()) << smaller.status().to_string();
    EXPECT_EQ(count(*smaller, on), 2);
  });
  EXPECT_FALSE(called("ncclCommShrink"));
}

TEST_F(DeviceShrink, windows_of_a_failed_group_are_released_with_their_last_handle) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    Result<DeviceWindow> window = comm.device_window(4096, on.device);
    ASSERT_TRUE(window.ok()) << window.status().to_string();
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) {
      comm.abort("enough");
    } else {
      const DeviceArray values(on, std::vector<float>(5, 1.0F), DType::kFloat32);
      const Call sum = Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum);
      EXPECT_FALSE(comm.start(sum, {.stream = on.stream}).wait().ok());
    }
  });
}

}  // namespace
}  // namespace accord
