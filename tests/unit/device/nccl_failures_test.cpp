// NCCL's symbols over host memory: how communicators are created and destroyed, and failures that a test or a caller
// causes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/device/nccl_ranks.hpp"

namespace accord::testing {
namespace {

using namespace nccl;  // NOLINT: NCCL's own names
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct NcclFailures : NcclTest {};

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclInternalError;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
  return state;
}

ncclConfig_t nonblocking() {
  ncclConfig_t config;
  config.blocking = 0;
  return config;
}

TEST_F(NcclFailures, a_nonblocking_communicator_is_in_progress_until_all_ranks_arrive) {
  const ncclUniqueId id = new_id();
  ncclConfig_t config = nonblocking();
  ncclComm_t first = nullptr, second = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&first, 2, id, 0, &config), ncclInProgress);
  int count = 0;
  EXPECT_EQ(state_of(first), ncclInProgress);
  EXPECT_EQ(ncclCommCount(first, &count), ncclInvalidArgument);
  ASSERT_EQ(ncclCommInitRankConfig(&second, 2, id, 1, &config), ncclSuccess);
  EXPECT_EQ(state_of(first), ncclSuccess);
  int rank = -1, device = -1;
  EXPECT_EQ(ncclCommCount(first, &count), ncclSuccess);
  EXPECT_EQ(ncclCommUserRank(second, &rank), ncclSuccess);
  EXPECT_EQ(ncclCommCuDevice(second, &device), ncclSuccess);
  EXPECT_THAT((std::vector{count, rank, device}), ElementsAre(2, 1, 0));
  ncclComm_t late = nullptr;
  EXPECT_EQ(ncclCommInitRank(&late, 2, id, 0), ncclInvalidUsage);  // the id is used up
  EXPECT_EQ(ncclCommDestroy(first), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(second), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(second), ncclInvalidArgument);
}

TEST_F(NcclFailures, options_are_read_by_the_size_of_the_config_and_recorded) {
  ncclConfig_t config;
  config.blocking = 1;
  config.maxCTAs = 8;
  config.netName = "Socket";
  config.trafficClass = 3;
  config.commName = "tp";
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config), ncclSuccess);
  ASSERT_EQ(ncclCommDestroy(comm), ncclSuccess);
  config.size = offsetof(ncclConfig_t, splitShare);  // as in an older header
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config), ncclSuccess);
  ASSERT_EQ(ncclCommDestroy(comm), ncclSuccess);
  EXPECT_THAT(
      log_of(0),
      ElementsAre(
          "ncclCommInitRankConfig rank=0 nranks=1 blocking=1 maxCTAs=8 netName=Socket trafficClass=3 commName=tp",
          "ncclCommDestroy rank=0", "ncclCommInitRankConfig rank=0 nranks=1 blocking=1 maxCTAs=8 netName=Socket",
          "ncclCommDestroy rank=0"));
  for (int ncclConfig_t::*member : {&ncclConfig_t::blocking, &ncclConfig_t::cgaClusterSize, &ncclConfig_t::minCTAs}) {
    ncclConfig_t wrong;
    wrong.*member = 9999999 * (member == &ncclConfig_t::minCTAs ? -1 : 1);
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &wrong), ncclInvalidArgument);
  }
  config.magic = 0;
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, new_id(), 0, &config), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("NCCL_CONFIG_INITIALIZER"));
}

TEST_F(NcclFailures, invalid_arguments_are_rejected) {
  with_communicators(2, [](int rank, ncclComm_t comm) {
    ValuesOnDevice<float> value(rank, {1, 2});
    std::vector<float> host(2);
    float* const data = value.data();
    const auto all_reduce = [&](float* to, std::size_t count, int dtype, int op, ncclComm_t of) {
      return ncclAllReduce(data, to, count, static_cast<ncclDataType_t>(dtype), static_cast<ncclRedOp_t>(op), of,
                           nullptr);
    };
    EXPECT_EQ(all_reduce(data, 2, ncclFloat32, ncclSum, nullptr), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(data, 2, 12, ncclSum, comm), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(data, 2, -1, ncclSum, comm), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(data, 2, ncclFloat32, 5, comm), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(data, 2, ncclFloat32, -1, comm), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(nullptr, 2, ncclFloat32, ncclSum, comm), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(host.data(), 2, ncclFloat32, ncclSum, comm), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(data, 3, ncclFloat32, ncclSum, comm), ncclInvalidArgument);
    EXPECT_EQ(ncclBcast(data, 1, ncclFloat32, 2, comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclSend(data, 1, ncclFloat32, -1, comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(data, 0, ncclFloat32, ncclSum, comm), ncclSuccess);  // nothing to do, even for one rank alone
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    const Stream elsewhere = HostRuntime::instance().create_stream(cuda(2), false).value();
    EXPECT_EQ(ncclAllReduce(data, data, 2, ncclFloat32, ncclSum, comm, elsewhere.handle), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("the stream is on cuda:2"));
    EXPECT_TRUE(HostRuntime::instance().destroy_stream(cuda(2), elsewhere).ok());
  });
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 2, new_id(), 2), ncclInvalidArgument);
  EXPECT_STREQ(ncclGetErrorString(ncclInvalidArgument), "invalid argument");
}

TEST_F(NcclFailures, a_split_orders_by_key_and_excludes_ranks_without_a_color) {
  with_communicators(4, [](int rank, ncclComm_t comm) {
    ncclComm_t child = comm;
    const int color = rank == 3 ? NCCL_SPLIT_NOCOLOR : rank % 2;
    ASSERT_EQ(ncclCommSplit(comm, color, -rank, &child, nullptr), ncclSuccess);
    if (rank == 3) {
      EXPECT_EQ(child, nullptr);
      return;
    }
    int count = 0, place = -1;
    ASSERT_EQ(ncclCommCount(child, &count), ncclSuccess);
    ASSERT_EQ(ncclCommUserRank(child, &place), ncclSuccess);
    EXPECT_EQ(count, rank == 1 ? 1 : 2);
    EXPECT_EQ(place, rank == 0 ? 1 : 0);
    ValuesOnDevice<int> value(rank, {rank + 1});
    ASSERT_EQ(ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, child, nullptr), ncclSuccess);
    synchronize(rank);
    EXPECT_THAT(value.values(), ElementsAre(rank == 1 ? 2 : 4));
    ASSERT_EQ(ncclCommDestroy(child), ncclSuccess);
  });
  EXPECT_THAT(log_of(2)[1], "ncclCommSplit rank=2 color=0 key=-2");
  EXPECT_THAT(log_of(2)[2], "ncclAllReduce rank=0 count=1 dtype=int32 op=sum");
}

TEST_F(NcclFailures, a_nonblocking_split_is_in_progress_on_the_parent_until_the_child_is_ready) {
  const ncclUniqueId id = new_id();
  ncclConfig_t config = nonblocking();
  ncclComm_t comms[2], children[2];
  (void)ncclCommInitRankConfig(&comms[0], 2, id, 0, &config);
  (void)ncclCommInitRankConfig(&comms[1], 2, id, 1, &config);
  ASSERT_EQ(ncclCommSplit(comms[0], 0, 0, &children[0], nullptr), ncclInProgress);
  EXPECT_EQ(state_of(comms[0]), ncclInProgress);
  EXPECT_EQ(children[0], nullptr);
  EXPECT_EQ(state_of(comms[1]), ncclSuccess);
  ASSERT_EQ(ncclCommSplit(comms[1], 0, 0, &children[1], nullptr), ncclSuccess);
  for (ncclComm_t comm : {comms[0], children[0], children[1]}) EXPECT_EQ(state_of(comm), ncclSuccess);
  for (ncclComm_t comm : {comms[0], comms[1], children[0], children[1]}) EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST_F(NcclFailures, the_remaining_ranks_shrink_while_one_hangs) {
  hang_next("ncclAllReduce", 1);
  const ncclUniqueId id = new_id();
  on_ranks(3, [&](int rank) {
    ncclComm_t comm = nullptr, child = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, 3, id, rank), ncclSuccess);
    ValuesOnDevice<int> value(rank, {rank + 1});
    ASSERT_EQ(ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comm, nullptr), ncclSuccess);
    int excluded = 1;
    if (rank == 1) {
      EXPECT_EQ(ncclCommShrink(comm, &excluded, 1, &child, nullptr, NCCL_SHRINK_ABORT), ncclInvalidArgument);
    } else {
      ASSERT_EQ(ncclCommShrink(comm, &excluded, 1, &child, nullptr, NCCL_SHRINK_ABORT), ncclSuccess);
      synchronize(rank);
      EXPECT_THAT(value.values(), ElementsAre(rank + 1));
      ASSERT_EQ(ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, child, nullptr), ncclSuccess);
      ASSERT_EQ(ncclCommDestroy(child), ncclSuccess);
      EXPECT_THAT(value.values(), ElementsAre(4));
    }
    ASSERT_EQ(ncclCommAbort(comm), ncclSuccess);
    synchronize(rank);
  });
}

TEST_F(NcclFailures, a_revoked_communicator_stops_and_can_only_be_shrunk_or_aborted) {
  const ncclUniqueId id = new_id();
  on_ranks(3, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, 3, id, rank), ncclSuccess);
    ValuesOnDevice<float> values(rank, {1, 2});
    if (rank != 1) {
      ASSERT_EQ(ncclAllReduce(values.data(), values.data(), 2, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
      EXPECT_EQ(ncclCommRevoke(comm, 7), ncclInvalidUsage);
      EXPECT_EQ(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), ncclSuccess);
      synchronize(rank);  // although rank 1 does not arrive
      EXPECT_EQ(ncclAllReduce(values.data(), values.data(), 2, ncclFloat32, ncclSum, comm, nullptr),
                ncclInvalidArgument);
      EXPECT_EQ(ncclCommFinalize(comm), ncclInvalidUsage);
      int excluded = 1;
      ncclComm_t smaller = nullptr;
      ASSERT_EQ(ncclCommShrink(comm, &excluded, 1, &smaller, nullptr, NCCL_SHRINK_ABORT), ncclSuccess);
      ASSERT_EQ(ncclAllReduce(values.data(), values.data(), 2, ncclFloat32, ncclSum, smaller, nullptr), ncclSuccess);
      synchronize(rank);
      EXPECT_THAT(values.values(), ElementsAre(2, 4));
      EXPECT_EQ(ncclCommDestroy(smaller), ncclSuccess);
    }
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  });
}

TEST_F(NcclFailures, an_abort_ends_the_waits_of_its_rank_but_not_of_its_peers) {
  HostRuntime& runtime = HostRuntime::instance();
  const ncclUniqueId id = new_id();
  ncclConfig_t config = nonblocking();
  ncclComm_t comms[3];
  for (int rank = 0; rank < 3; ++rank) {
    HostRuntime::set_current_device(rank);
    (void)ncclCommInitRankConfig(&comms[rank], 3, id, rank, &config);
  }
  HostRuntime::set_current_device(0);
  ValuesOnDevice<int> first(0, {1}), second(1, {2});
  const device::Event done = runtime.create_event(cuda(1)).value();
  ASSERT_EQ(ncclAllReduce(first.data(), first.data(), 1, ncclInt32, ncclSum, comms[0], nullptr), ncclInProgress);
  EXPECT_EQ(ncclAllReduce(first.data(), first.data(), 1, ncclInt32, ncclSum, comms[0], nullptr), ncclInvalidArgument);
  EXPECT_EQ(state_of(comms[0]), ncclInProgress);
  EXPECT_EQ(state_of(comms[0]), ncclSuccess);
  ASSERT_EQ(ncclAllReduce(second.data(), second.data(), 1, ncclInt32, ncclSum, comms[1], nullptr), ncclInProgress);
  ASSERT_TRUE(runtime.record(done, cuda(1), {}).ok());
  ASSERT_EQ(ncclCommFinalize(comms[0]), ncclInProgress);
  EXPECT_EQ(state_of(comms[0]), ncclInProgress);
  ASSERT_EQ(ncclCommAbort(comms[0]), ncclSuccess);
  synchronize(0);
  EXPECT_THAT(first.values(), ElementsAre(1));
  EXPECT_FALSE(runtime.has_happened(done).value());
  ASSERT_EQ(ncclCommAbort(comms[1]), ncclSuccess);
  synchronize(1);
  EXPECT_TRUE(runtime.has_happened(done).value());
  ASSERT_EQ(ncclCommAbort(comms[2]), ncclSuccess);
  ASSERT_TRUE(runtime.destroy_event(done).ok());
}

TEST_F(NcclFailures, destroy_and_finalize_wait_for_pending_work) {
  HostRuntime& runtime = HostRuntime::instance();
  std::optional<BusyStream> hold(runtime.make_stream_busy({}, cuda(1)));
  with_communicators(2, [&](int rank, ncclComm_t comm) {
    ValuesOnDevice<int> value(rank, {rank + 1});
    ASSERT_EQ(ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comm, nullptr), ncclSuccess);
    if (rank == 1) hold->release();
    ASSERT_EQ(ncclCommFinalize(comm), ncclSuccess);
    EXPECT_THAT(value.values(), ElementsAre(3));
    EXPECT_EQ(ncclSend(value.data(), 1, ncclInt32, 0, comm, nullptr), ncclInvalidArgument);
  });
}

TEST_F(NcclFailures, a_blocked_call_ends_when_another_thread_revokes_or_aborts_its_communicator) {
  for (const bool revokes : {true, false}) {
    const ncclUniqueId id = new_id();
    ncclComm_t comms[2];
    on_ranks(2, [&](int rank) { ASSERT_EQ(ncclCommInitRank(&comms[rank], 2, id, rank), ncclSuccess); });
    set_connecting(true);
    std::thread ending([&] {
      while (blocked_threads() == 0) std::this_thread::yield();
      EXPECT_EQ(revokes ? ncclCommRevoke(comms[0], NCCL_REVOKE_DEFAULT) : ncclCommAbort(comms[0]), ncclSuccess);
    });
    HostRuntime::set_current_device(0);
    ValuesOnDevice<int> value(0, {1});
    EXPECT_EQ(ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comms[0], nullptr), ncclInternalError);
    ending.join();
    EXPECT_EQ(aborts_during_calls(), revokes ? 0 : 1);
    if (revokes) {
      EXPECT_EQ(ncclCommAbort(comms[0]), ncclSuccess);
    }
    EXPECT_EQ(ncclCommAbort(comms[1]), ncclSuccess);
    synchronize(0);
    reset_nccl();
  }
}

TEST_F(NcclFailures, a_child_whose_creation_was_aborted_must_be_aborted_too) {
  const ncclUniqueId id = new_id();
  ncclComm_t comms[2];
  on_ranks(2, [&](int rank) { ASSERT_EQ(ncclCommInitRank(&comms[rank], 2, id, rank), ncclSuccess); });
  ncclComm_t child = nullptr;
  std::thread ending([&] {
    while (blocked_threads() == 0) std::this_thread::yield();
    EXPECT_EQ(ncclCommRevoke(comms[0], NCCL_REVOKE_DEFAULT), ncclSuccess);
  });
  EXPECT_EQ(ncclCommSplit(comms[0], 0, 0, &child, nullptr), ncclInternalError);
  ending.join();
  ASSERT_NE(child, nullptr);
  for (ncclComm_t comm : {child, comms[0], comms[1]}) EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
}

TEST_F(NcclFailures, only_calls_on_communicators_that_are_not_blocking_start_threads) {
  for (const bool blocks : {true, false}) {
    set_blocking(blocks);
    ncclComm_t comm = nullptr;
    (void)ncclCommInitRank(&comm, 1, new_id(), 0);
    const int before = started_threads();
    ValuesOnDevice<int> value(0, {1});
    (void)state_of(comm);
    (void)ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comm, nullptr);
    (void)state_of(comm);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    (void)ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comm, nullptr);
    EXPECT_EQ(ncclGroupEnd(), blocks ? ncclSuccess : ncclInProgress);
    (void)state_of(comm);
    EXPECT_EQ(started_threads() - before, blocks ? 0 : 2);
    EXPECT_EQ(calls_of("ncclAllReduce"), blocks ? 2 : 4);
    EXPECT_EQ(caller_of("ncclAllReduce", 0), std::this_thread::get_id());
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    synchronize(0);
  }
}

TEST_F(NcclFailures, an_abort_ends_a_hanging_init) {
  hang_next("ncclCommInitRankConfig", 1);
  const ncclUniqueId id = new_id();
  ncclConfig_t config = nonblocking();
  ncclComm_t comms[2];
  for (int rank = 0; rank < 2; ++rank)
    ASSERT_EQ(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config), ncclInProgress);
  for (ncclComm_t comm : comms) {
    EXPECT_EQ(state_of(comm), ncclInProgress);
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  }
}

TEST_F(NcclFailures, a_requested_failure_occurs_once_on_its_rank) {
  fail_next("ncclAllReduce", ncclRemoteError, 1);
  fail_next("ncclGetUniqueId", ncclSystemError);
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSystemError);
  with_communicators(2, [](int rank, ncclComm_t comm) {
    ValuesOnDevice<int> value(rank, {rank + 1});
    if (rank == 1) {
      EXPECT_EQ(ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comm, nullptr), ncclRemoteError);
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr("ncclAllReduce: a failure that the test requested"));
    }
    ASSERT_EQ(ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comm, nullptr), ncclSuccess);
    synchronize(rank);
    EXPECT_THAT(value.values(), ElementsAre(3));
  });
}

TEST_F(NcclFailures, a_group_with_an_invalid_call_does_nothing) {
  with_communicators(2, [](int rank, ncclComm_t comm) {
    ValuesOnDevice<int> value(rank, {5});
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclSend(value.data(), 1, ncclInt32, 0, comm, nullptr), ncclSuccess);
    EXPECT_EQ(ncclRecv(value.data(), 1, ncclInt32, 7, comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    synchronize(rank);
  });
  EXPECT_THAT(log_of(0), ::testing::Contains("ncclSend rank=0 count=1 dtype=int32 peer=0 group"));
}

TEST_F(NcclFailures, ranks_that_disagree_get_an_error_and_continue_after_an_abort) {
  const ncclUniqueId id = new_id();
  on_ranks(2, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclSuccess);
    ValuesOnDevice<int> value(rank, {1, 2});
    const auto count = static_cast<std::size_t>(rank + 1);
    ASSERT_EQ(ncclAllReduce(value.data(), value.data(), count, ncclInt32, ncclSum, comm, nullptr), ncclSuccess);
    while (state_of(comm) == ncclSuccess) std::this_thread::yield();
    EXPECT_EQ(state_of(comm), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("different arguments"));
    ASSERT_EQ(ncclCommAbort(comm), ncclSuccess);
    synchronize(rank);
    EXPECT_THAT(value.values(), ElementsAre(1, 2));
  });
}

TEST_F(NcclFailures, an_injected_error_is_reported_and_rejects_calls) {
  with_communicators(2, [](int rank, ncclComm_t comm) {
    ValuesOnDevice<int> value(rank, {1});
    if (rank == 1) {
      set_async_error(1, ncclRemoteError);
      EXPECT_EQ(state_of(comm), ncclRemoteError);
      EXPECT_EQ(ncclBcast(value.data(), 1, ncclInt32, 0, comm, nullptr), ncclRemoteError);
    } else {
      EXPECT_EQ(state_of(comm), ncclSuccess);
    }
  });
}

TEST_F(NcclFailures, unreleased_objects_are_counted_and_an_abort_releases_them) {
  ncclComm_t comm = nullptr;
  ValuesOnDevice<float> value(0, {1});
  void* handle = nullptr;
  ncclRedOp_t op;
  ASSERT_EQ(ncclCommInitRank(&comm, 1, new_id(), 0), ncclSuccess);
  ASSERT_EQ(ncclCommRegister(comm, value.data(), 4, &handle), ncclSuccess);
  ASSERT_EQ(ncclRedOpCreatePreMulSum(&op, value.data(), ncclFloat32, ncclScalarHostImmediate, comm), ncclSuccess);
  EXPECT_EQ(live_nccl(), (LiveNccl{.communicators = 1, .registrations = 1, .windows = 0, .redops = 1}));
  ASSERT_EQ(ncclCommAbort(comm), ncclSuccess);
  EXPECT_EQ(live_nccl(), LiveNccl{});
  clear_log();
  EXPECT_THAT(log_of(0), IsEmpty());
}

}  // namespace
}  // namespace accord::testing
