// Groups derived from groups that have made calls on devices, and borrowed NCCL communicators.
#include <gmock/gmock.h>

#include "accord/nccl.hpp"
#include "comm/group.hpp"
#include "conformance/comm/host_devices.hpp"

namespace accord {
namespace {

using ::testing::Contains;
using testing::DeviceArray;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::OnDevice;
namespace nccl = testing::nccl;

class DeviceGroups : public testing::HostDevices {
 protected:
  /// Returns the result of an all_reduce of ones.
  static float count(Communicator& comm, const OnDevice& on) {
    const DeviceArray values(on, std::vector<float>(5, 1.0F), DType::kFloat32);
    const Status status = comm.all_reduce(values.buffer(), ReduceOp::kSum, {.stream = on.stream});
    EXPECT_TRUE(status.ok()) << status.to_string();
    return values.values<float>()[4];
  }
};

TEST_F(DeviceGroups, a_split_of_a_connected_group_splits_its_nccl_communicator) {
  on_ranks(5, [](Communicator& comm, const OnDevice& on) {
    ASSERT_EQ(count(comm, on), 5);
    const int color = comm.rank() == 4 ? -1 : comm.rank() % 2;
    Result<std::optional<Communicator>> part = comm.split(color, -comm.rank(), {.name = "part"});  // in reverse order
    ASSERT_TRUE(part.ok()) << part.status().to_string();
    ASSERT_EQ(part->has_value(), color >= 0);
    if (color >= 0) {
      EXPECT_EQ((*part)->rank(), comm.rank() < 2 ? 1 : 0);
      EXPECT_EQ(count(**part, on), 2);
      const DeviceArray root_rank(on, std::vector<std::int32_t>(1, comm.rank()), DType::kInt32);
      ASSERT_TRUE((*part)->broadcast(root_rank.buffer(), 0, {.stream = on.stream}).ok());
      EXPECT_EQ(root_rank.values<std::int32_t>()[0], color + 2);
    }
    EXPECT_EQ(count(comm, on), 5);
  });
  EXPECT_THAT(testing::log_of(0), Contains(HasSubstr("ncclCommSplit")));
}

TEST_F(DeviceGroups, a_split_before_the_first_call_connects_separately) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    Communicator part = **comm.split(0, 0, {.name = "part"});
    EXPECT_EQ(count(part, on), 2);
  });
  EXPECT_THAT(testing::log_of(0), Not(Contains(HasSubstr("ncclCommSplit"))));
}

TEST_F(DeviceGroups, a_split_rejected_by_nccl_fails_on_all_ranks) {
  on_ranks(2, {.timeout = std::chrono::seconds(2)}, [](Communicator& comm, const OnDevice& on) {
    ASSERT_EQ(count(comm, on), 2);
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) testing::fail_next("ncclCommSplit", nccl::ncclSystemError, 1);
    const Status status = comm.split(0, 0, {.name = "part"}).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("ncclCommSplit"));
  });
}

TEST_F(DeviceGroups, a_rank_whose_device_fails_in_a_split_fails_all_ranks) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ASSERT_EQ(count(comm, on), 2);
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) runtime().fail_next("create_stream", Status(StatusCode::kResourceExhausted, "no stream"));
    ASSERT_TRUE(comm.barrier().ok());
    const auto begin = std::chrono::steady_clock::now();
    const Status status = comm.split(0, 0, {.name = "part"}).status();
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("no stream"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  });
}

/// Closing between the two steps of a split or shrink: the second finds no communicator.
TEST_F(DeviceGroups, a_group_that_closes_during_a_split_or_shrink_is_not_used) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    Communicator part = **comm.split(0, 0, {.name = "part"});
    ASSERT_EQ(count(comm, on), 2);
    const std::shared_ptr<comm::Group> group = comm.group();
    if (comm.rank() == 0) {
      comm.close();
      const Status split = group->device_channel().split(0, 0, nullptr, Deadline::in(std::chrono::seconds(20)));
      EXPECT_EQ(split.code(), StatusCode::kClosed) << split.to_string();
    }
    // The other rank fails as well, because no rank is lost.
    group->device_channel().shrink({}, *part.group(), Deadline::in(std::chrono::seconds(20)));
    EXPECT_EQ(count(part, on), 2);
  });
}

TEST_F(DeviceGroups, survivors_make_calls_after_a_shrink) {
  on_ranks(3, [](Communicator& comm, const OnDevice& on) {
    ASSERT_EQ(count(comm, on), 3);
    if (comm.rank() == 1) return;  // closes its communicator
    const DeviceArray values(on, std::vector<float>(5, 1.0F), DType::kFloat32);
    const Status lost =
        comm.start(Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum), {.stream = on.stream}).wait();
    EXPECT_EQ(lost.code(), StatusCode::kPeerLost) << lost.to_string();
    Result<Communicator> smaller = comm.shrink("smaller");
    ASSERT_TRUE(smaller.ok()) << smaller.status().to_string();
    EXPECT_EQ(count(*smaller, on), 2);
  });
}

/// Runs `body` on each rank with an NCCL communicator that the rank has created itself.
void with_borrowed(int size, const std::function<void(Communicator&, nccl::ncclComm_t)>& body) {
  nccl::ncclUniqueId id;
  ASSERT_EQ(nccl::ncclGetUniqueId(&id), nccl::ncclSuccess);
  testing::run_thread_ranks(size, {.timeout = std::chrono::seconds(60)}, [&](Communicator comm) {
    testing::HostRuntime::set_current_device(comm.rank());
    nccl::ncclComm_t own = nullptr;
    ASSERT_EQ(nccl::ncclCommInitRank(&own, size, id, comm.rank()), nccl::ncclSuccess);
    body(comm, own);
    comm.close();
    EXPECT_EQ(nccl::ncclCommDestroy(own), nccl::ncclSuccess);
  });
}

TEST_F(DeviceGroups, a_borrowed_communicator_makes_the_calls_and_remains_with_its_owner) {
  with_borrowed(2, [](Communicator& comm, nccl::ncclComm_t own) {
    ASSERT_TRUE(lend_nccl(comm, own).ok());
    const OnDevice on{runtime(), {DeviceType::kCuda, static_cast<std::int16_t>(comm.rank())}};
    EXPECT_EQ(count(comm, on), 2);
    Communicator part = **comm.split(0, 0, {.name = "part"});
    EXPECT_EQ(count(part, on), 2);
    const Status again = lend_nccl(comm, own);
    EXPECT_EQ(again.code(), StatusCode::kWrongState);
    EXPECT_THAT(again.message(), HasSubstr("has already made calls on a GPU"));
  });
  EXPECT_THAT(testing::log_of(0), Not(Contains(HasSubstr("ncclCommInitRankConfig"))));
}

TEST_F(DeviceGroups, a_communicator_of_other_ranks_is_rejected) {
  with_borrowed(2, [](Communicator& comm, nccl::ncclComm_t own) {
    Communicator turned = **comm.split(0, -comm.rank(), {.name = "turned"});
    const Status wrong = lend_nccl(turned, own);
    EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(wrong.message(), HasSubstr("of 2, this rank"));
    EXPECT_EQ(lend_nccl(comm, nullptr).code(), StatusCode::kInvalidArgument);
  });
}

TEST_F(DeviceGroups, a_rank_without_a_borrowed_communicator_is_a_mismatch) {
  with_borrowed(2, [](Communicator& comm, nccl::ncclComm_t own) {
    if (comm.rank() == 0) {
      ASSERT_TRUE(lend_nccl(comm, own).ok());
    }
    const OnDevice on{runtime(), {DeviceType::kCuda, static_cast<std::int16_t>(comm.rank())}};
    const DeviceArray values(on, std::vector<float>(5, 1.0F), DType::kFloat32);
    const Status status = comm.all_reduce(values.buffer(), ReduceOp::kSum);
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("a communicator that was lent"));
  });
}

TEST_F(DeviceGroups, the_library_is_reported_with_its_version) {
  const Result<std::string> version = nccl_version();
  ASSERT_TRUE(version.ok()) << version.status().to_string();
  EXPECT_THAT(*version, HasSubstr("2.29.7 ("));
  EXPECT_THAT(*version, HasSubstr("accord_test_device"));
}

}  // namespace
}  // namespace accord
