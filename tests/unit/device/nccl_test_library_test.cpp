// NCCL's symbols over host memory: the results of its collectives in streams, groups and graphs.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "unit/device/nccl_ranks.hpp"

namespace accord::testing {
namespace {

using namespace nccl;  // NOLINT: NCCL's own names
using ::testing::Each;
using ::testing::ElementsAre;
using Floats = std::vector<float>;

struct NcclLibrary : NcclTest {};

TEST_F(NcclLibrary, is_opened_by_its_path_and_reports_the_configured_version) {
  void* const library = dlopen(library_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto get_version = reinterpret_cast<ncclResult_t (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  EXPECT_EQ(get_version(&version), ncclSuccess);
  EXPECT_EQ(version, 22907);
  set_version(21803);
  EXPECT_EQ(get_version(&version), ncclSuccess);
  EXPECT_EQ(version, 21803);
  dlclose(library);
}

TEST_F(NcclLibrary, every_collective_matches_a_short_reference) {
  constexpr int kRanks = 4;
  constexpr std::size_t kCount = 3;
  const auto sent = [](int rank, std::size_t i) { return static_cast<float>(100 * rank) + static_cast<float>(i); };
  with_communicators(kRanks, [&](int rank, ncclComm_t comm) {
    const auto own = static_cast<std::size_t>(rank);
    Floats from(kRanks * kCount), sum(kRanks * kCount), gathered, maximum, of_last;
    for (std::size_t i = 0; i < from.size(); ++i) {
      from[i] = sent(rank, i);
      for (int each = 0; each < kRanks; ++each) sum[i] += sent(each, i);
    }
    for (int each = 0; each < kRanks; ++each)
      for (std::size_t i = 0; i < kCount; ++i) gathered.push_back(sent(each, i));
    for (std::size_t i = 0; i < kCount; ++i) maximum.push_back(sent(kRanks - 1, i));
    const Floats part(sum.begin() + static_cast<std::ptrdiff_t>(own * kCount),
                      sum.begin() + static_cast<std::ptrdiff_t>((own + 1) * kCount));

    ValuesOnDevice<float> send(rank, from), all(rank, Floats(kRanks * kCount)), some(rank, Floats(kCount)),
        at_root(rank, Floats(kCount, -1));
    ValuesOnDevice<float> everything(rank, Floats(kRanks * kCount)), broadcast(rank, Floats(kCount));
    ASSERT_EQ(ncclAllReduce(send.data(), all.data(), kRanks * kCount, ncclFloat32, ncclSum, comm, nullptr),
              ncclSuccess);
    ASSERT_EQ(ncclReduceScatter(send.data(), some.data(), kCount, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
    ASSERT_EQ(ncclAllGather(send.data(), everything.data(), kCount, ncclFloat32, comm, nullptr), ncclSuccess);
    ASSERT_EQ(ncclReduce(send.data(), at_root.data(), kCount, ncclFloat32, ncclMax, 2, comm, nullptr), ncclSuccess);
    ASSERT_EQ(ncclBroadcast(send.data(), broadcast.data(), kCount, ncclFloat32, 3, comm, nullptr), ncclSuccess);
    ASSERT_EQ(ncclBcast(send.data(), kCount, ncclFloat32, 3, comm, nullptr), ncclSuccess);
    synchronize(rank);
    EXPECT_EQ(all.values(), sum);
    EXPECT_EQ(some.values(), part);
    EXPECT_EQ(everything.values(), gathered);
    EXPECT_EQ(at_root.values(), rank == 2 ? maximum : Floats(kCount, -1));
    EXPECT_EQ(broadcast.values(), maximum);
    EXPECT_EQ(send.values()[1], maximum[1]);
  });
}

TEST_F(NcclLibrary, collectives_work_in_place) {
  with_communicators(3, [](int rank, ncclComm_t comm) {
    const auto value = static_cast<float>(rank + 1);
    ValuesOnDevice<float> reduced(rank, {value, 10 * value, 100 * value}),
        scattered(rank, {value, 10 * value, 100 * value});
    ValuesOnDevice<float> gathered(rank, Floats(3, value));
    ASSERT_EQ(ncclAllReduce(reduced.data(), reduced.data(), 3, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
    ASSERT_EQ(ncclReduceScatter(scattered.data(), scattered.data() + rank, 1, ncclFloat32, ncclSum, comm, nullptr),
              ncclSuccess);
    ASSERT_EQ(ncclAllGather(gathered.data() + rank, gathered.data(), 1, ncclFloat32, comm, nullptr), ncclSuccess);
    synchronize(rank);
    EXPECT_THAT(reduced.values(), ElementsAre(6, 60, 600));
    EXPECT_EQ(scattered.values()[static_cast<std::size_t>(rank)], (Floats{6, 60, 600})[static_cast<std::size_t>(rank)]);
    EXPECT_THAT(gathered.values(), ElementsAre(1, 2, 3));
  });
}

TEST_F(NcclLibrary, a_collective_runs_in_its_stream_when_all_ranks_arrive) {
  HostRuntime& runtime = HostRuntime::instance();
  BusyStream hold = runtime.make_stream_busy({}, cuda(1));
  with_communicators(2, [&](int rank, ncclComm_t comm) {
    ValuesOnDevice<float> value(rank, {1});
    const device::Event done = runtime.create_event(cuda(rank)).value();
    ASSERT_EQ(ncclAllReduce(value.data(), value.data(), 1, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
    ASSERT_TRUE(runtime.record(done, cuda(rank), {}).ok());
    if (rank == 0) {
      EXPECT_FALSE(runtime.has_happened(done).value());
      EXPECT_THAT(value.values(), ElementsAre(1));
      hold.release();
    }
    synchronize(rank);
    EXPECT_TRUE(runtime.has_happened(done).value());
    EXPECT_THAT(value.values(), ElementsAre(2));
    ASSERT_TRUE(runtime.destroy_event(done).ok());
  });
}

TEST_F(NcclLibrary, sends_and_receives_of_a_group_progress_together) {
  constexpr int kRanks = 4;
  with_communicators(kRanks, [](int rank, ncclComm_t comm) {
    ValuesOnDevice<int> send(rank, {10 * rank, 10 * rank + 1, 10 * rank + 2, 10 * rank + 3}),
        receive(rank, std::vector<int>(kRanks, -1));
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int i = 0; i < kRanks; ++i) {
      const int peer = (i * 3 + rank) % kRanks;  // a different order on each rank
      ASSERT_EQ(ncclRecv(receive.data() + peer, 1, ncclInt32, peer, comm, nullptr), ncclSuccess);
      ASSERT_EQ(ncclSend(send.data() + peer, 1, ncclInt32, peer, comm, nullptr), ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    synchronize(rank);
    EXPECT_THAT(receive.values(), Each(-1));  // nothing has started: the outer group is still open
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    synchronize(rank);
    EXPECT_THAT(receive.values(), ElementsAre(rank, 10 + rank, 20 + rank, 30 + rank));
  });
}

TEST_F(NcclLibrary, messages_of_a_pair_keep_their_order) {
  with_communicators(2, [](int rank, ncclComm_t comm) {
    ValuesOnDevice<int> values(rank, rank == 0 ? std::vector{1, 2, 3} : std::vector{0, 0, 0});
    for (int i = 0; i < 3; ++i) {
      const ncclResult_t result = rank == 0 ? ncclSend(values.data() + i, 1, ncclInt32, 1, comm, nullptr)
                                            : ncclRecv(values.data() + i, 1, ncclInt32, 0, comm, nullptr);
      ASSERT_EQ(result, ncclSuccess);
    }
    synchronize(rank);
    EXPECT_THAT(values.values(), ElementsAre(1, 2, 3));
  });
}

TEST_F(NcclLibrary, one_thread_drives_all_ranks_with_group_calls) {
  const ncclUniqueId id = new_id();
  ncclComm_t comms[2];
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < 2; ++rank) {
    HostRuntime::set_current_device(rank);
    ASSERT_EQ(ncclCommInitRank(&comms[rank], 2, id, rank), ncclSuccess);
  }
  HostRuntime::set_current_device(0);
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  ValuesOnDevice<int> first(0, {1}), second(1, {2});
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  ASSERT_EQ(ncclAllReduce(first.data(), first.data(), 1, ncclInt32, ncclSum, comms[0], nullptr), ncclSuccess);
  ASSERT_EQ(ncclAllReduce(second.data(), second.data(), 1, ncclInt32, ncclSum, comms[1], nullptr), ncclSuccess);
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  for (int rank = 0; rank < 2; ++rank) ASSERT_EQ(ncclCommDestroy(comms[rank]), ncclSuccess);
  EXPECT_THAT(first.values(), ElementsAre(3));
  EXPECT_THAT(second.values(), ElementsAre(3));
}

TEST_F(NcclLibrary, operations_in_two_streams_run_in_call_order) {
  HostRuntime& runtime = HostRuntime::instance();
  with_communicators(2, [&](int rank, ncclComm_t comm) {
    const Stream one = runtime.create_stream(cuda(rank), false).value(),
                 two = runtime.create_stream(cuda(rank), false).value();
    ValuesOnDevice<int> value(rank, {1});
    for (int i = 0; i < 10; ++i)
      ASSERT_EQ(ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comm, (i % 2 == 0 ? one : two).handle),
                ncclSuccess);
    synchronize(rank, two);
    EXPECT_THAT(value.values(), ElementsAre(1024));
    // In a group, both streams wait for the work of either one.
    BusyStream hold = runtime.make_stream_busy(two);
    ValuesOnDevice<int> other(rank, {7});
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    ASSERT_EQ(ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comm, one.handle), ncclSuccess);
    ASSERT_EQ(ncclAllReduce(other.data(), other.data(), 1, ncclInt32, ncclSum, comm, two.handle), ncclSuccess);
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    hold.release();
    synchronize(rank, one);
    EXPECT_THAT(value.values(), ElementsAre(2048));
    EXPECT_THAT(other.values(), ElementsAre(14));
    ASSERT_TRUE(runtime.destroy_stream(cuda(rank), one).ok() && runtime.destroy_stream(cuda(rank), two).ok());
  });
}

TEST_F(NcclLibrary, a_captured_collective_runs_at_each_launch) {
  HostRuntime& runtime = HostRuntime::instance();
  with_communicators(2, [&](int rank, ncclComm_t comm) {
    const Stream stream = runtime.create_stream(cuda(rank), false).value();
    ValuesOnDevice<int> value(rank, {1});
    const auto add = [&](Stream to) {
      return ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comm, to.handle);
    };
    ASSERT_EQ(add(stream), ncclSuccess);
    ASSERT_TRUE(runtime.begin_capture(cuda(rank), stream).ok());
    ASSERT_EQ(add(stream), ncclSuccess);
    ASSERT_EQ(add(stream), ncclSuccess);
    const Graph graph = runtime.end_capture(cuda(rank), stream).value();
    synchronize(rank, stream);
    EXPECT_THAT(value.values(), ElementsAre(2));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(runtime.launch(graph, stream).ok());
    ASSERT_EQ(add(stream), ncclSuccess);
    synchronize(rank, stream);
    EXPECT_THAT(value.values(), ElementsAre(256));
    ASSERT_TRUE(runtime.destroy_stream(cuda(rank), stream).ok());
  });
}

TEST_F(NcclLibrary, the_factor_of_each_rank_is_applied_before_the_sum) {
  with_communicators(3, [](int rank, ncclComm_t comm) {
    float factor = 0.5F * static_cast<float>(rank);
    ValuesOnDevice<float> value(rank, {4, 8}), later(rank, {4, 8}), on_device(rank, {0});
    ncclRedOp_t host_op, device_op;
    ASSERT_EQ(ncclRedOpCreatePreMulSum(&host_op, &factor, ncclFloat32, ncclScalarHostImmediate, comm), ncclSuccess);
    ASSERT_EQ(ncclRedOpCreatePreMulSum(&device_op, on_device.data(), ncclFloat32, ncclScalarDevice, comm), ncclSuccess);
    factor = 99;            // has been read
    *on_device.data() = 2;  // is read when the operation runs
    ASSERT_EQ(ncclAllReduce(value.data(), value.data(), 2, ncclFloat32, host_op, comm, nullptr), ncclSuccess);
    ASSERT_EQ(ncclAllReduce(later.data(), later.data(), 2, ncclFloat32, device_op, comm, nullptr), ncclSuccess);
    EXPECT_EQ(ncclAllReduce(value.data(), value.data(), 1, ncclFloat16, host_op, comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclRedOpDestroy(host_op, comm), ncclSuccess);
    EXPECT_EQ(ncclRedOpDestroy(device_op, comm), ncclSuccess);
    EXPECT_EQ(ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument);
    synchronize(rank);
    EXPECT_THAT(value.values(), ElementsAre(6, 12));
    EXPECT_THAT(later.values(), ElementsAre(24, 48));
  });
}

TEST_F(NcclLibrary, memory_registrations_and_windows_are_released) {
  with_communicators(2, [](int rank, ncclComm_t comm) {
    void* memory = nullptr;
    ASSERT_EQ(ncclMemAlloc(&memory, 100), ncclSuccess);
    EXPECT_EQ(HostRuntime::instance().device_of(memory).value(), cuda(rank));
    void* handle = nullptr;
    ncclWindow_t window = nullptr;
    EXPECT_EQ(ncclCommRegister(comm, memory, 1 << 20, &handle), ncclInvalidArgument);
    ASSERT_EQ(ncclCommRegister(comm, memory, 100, &handle), ncclSuccess);
    EXPECT_EQ(ncclCommWindowRegister(comm, static_cast<char*>(memory) + 1, 10, &window, 0), ncclInvalidArgument);
    ASSERT_EQ(ncclCommWindowRegister(comm, memory, 100, &window, NCCL_WIN_COLL_SYMMETRIC), ncclSuccess);
    EXPECT_GE(live_nccl().registrations, 1);
    EXPECT_GE(live_nccl().windows, 1);
    ValuesOnDevice<char> plain(rank, std::vector<char>(1 << 16));  // not made by the virtual memory calls
    ncclWindow_t none = nullptr;
    EXPECT_EQ(ncclCommWindowRegister(comm, plain.data(), 1 << 16, &none, NCCL_WIN_COLL_SYMMETRIC),
              ncclUnhandledCudaError);
    EXPECT_EQ(ncclCommWindowDeregister(comm, window), ncclSuccess);
    EXPECT_EQ(ncclCommDeregister(comm, handle), ncclSuccess);
    EXPECT_EQ(ncclCommDeregister(comm, handle), ncclInvalidArgument);
    EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
  });
}

}  // namespace
}  // namespace accord::testing
