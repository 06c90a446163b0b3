// NCCL's calls block: which threads make them, and how a call that waits for a rank that never arrives ends.
#include <gmock/gmock.h>
#include <pthread.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "accord/nccl.hpp"
#include "comm/nccl/connection.hpp"
#include "conformance/comm/device_suite.hpp"
#include "conformance/comm/host_devices.hpp"
#include "conformance/comm/other_nccl.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OnDevice;
namespace nccl = testing::nccl;

class NcclCalls : public testing::HostDevices {
 protected:
  static DeviceArray ones(const OnDevice& on) { return DeviceArray(on, std::vector<float>(64, 1.0F), DType::kFloat32); }
  static Call sum(const DeviceArray& values) {
    return Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum);
  }
  static void connect(Communicator& comm, const OnDevice& on) {
    const DeviceArray values = ones(on);
    ASSERT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
    on.synchronize();
    ASSERT_TRUE(comm.barrier().ok());
  }
  /// Connects, and makes the next collective of rank 0 block its caller in NCCL as the first collective does whose peer
  /// does not arrive.
  static void connect_and_hang(Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    testing::set_connecting(true);
    if (comm.rank() == 0) testing::hang_next("ncclCommConnect", 0);
    ASSERT_TRUE(comm.barrier().ok());
  }
  static void await_blocked_call() {
    while (testing::blocked_threads() == 0) std::this_thread::yield();
  }
  /// For threads that abort communicators.
  static void await_communicators() {
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (testing::live_nccl().communicators > 0 && std::chrono::steady_clock::now() < late) std::this_thread::yield();
  }
  static std::chrono::milliseconds since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
  }
};

TEST_F(NcclCalls, a_collective_is_one_call_on_the_callers_thread_and_starts_none) {
  constexpr int kCalls = 20;
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on);
    const int before = testing::calls_of("ncclAllReduce"), groups = testing::calls_of("ncclGroupEnd");
    ASSERT_TRUE(comm.barrier().ok());
    for (int i = 0; i < kCalls; ++i) ASSERT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
    EXPECT_EQ(testing::caller_of("ncclAllReduce", comm.rank()), std::this_thread::get_id());
    // The watch asks for errors, not the caller.
    EXPECT_NE(testing::caller_of("ncclCommGetAsyncError", comm.rank()), std::this_thread::get_id());
    ASSERT_TRUE(comm.barrier().ok());
    EXPECT_EQ(testing::calls_of("ncclAllReduce"), before + 2 * kCalls);
    EXPECT_EQ(testing::calls_of("ncclGroupEnd"), groups);
    on.synchronize();
  });
  EXPECT_EQ(testing::started_threads(), 0);
}

TEST_F(NcclCalls, all_kinds_of_calls_start_no_thread) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) { testing::check_device_works(comm, on); });
  on_ranks(3, [](Communicator& comm, const OnDevice& on) { testing::check_device_messages(comm, on); });
  EXPECT_EQ(testing::started_threads(), 0);
}

TEST_F(NcclCalls, communicators_that_are_not_blocking_serve_the_same_calls) {
  testing::set_blocking(false);  // as by NCCL_COMM_BLOCKING
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    testing::check_device_works(comm, on);
    Communicator part = **comm.split(0, 0, {.name = "part"});
    connect(part, on);
    const DeviceWindow window = part.device_window(4096, on.device).value();
    EXPECT_EQ(window.use(), WindowUse::kSymmetric);
  });
  on_ranks(3, [](Communicator& comm, const OnDevice& on) { testing::check_device_messages(comm, on); });
  EXPECT_GT(testing::started_threads(), 0);
}

TEST_F(NcclCalls, a_first_collective_connects_in_nccl_and_then_calls_return_at_once) {
  testing::set_connecting(true);
  on_ranks(3, [](Communicator& comm, const OnDevice& on) {
    testing::check_device_works(comm, on);
    connect(comm, on);
  });
}

TEST_F(NcclCalls, a_call_that_blocks_in_nccl_ends_at_its_timeout_and_names_the_missing_rank) {
  for (const bool blocks : {true, false}) {
    SCOPED_TRACE(blocks ? "blocking" : "not blocking");
    if (!blocks) testing::set_blocking(false);
    on_ranks(2, [](Communicator& comm, const OnDevice& on) {
      connect(comm, on);
      testing::set_connecting(true);
      ASSERT_TRUE(comm.barrier().ok());
      if (comm.rank() == 0) {
        const DeviceArray values = ones(on);
        const auto begin = std::chrono::steady_clock::now();
        const Status status = comm.run(sum(values), {.timeout = std::chrono::milliseconds(300), .stream = on.stream});
        EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
        EXPECT_THAT(status.ranks(), ElementsAre(1));
        EXPECT_THAT(status.message(), HasSubstr("rank 1 did not arrive in time"));
        EXPECT_LT(since(begin), std::chrono::seconds(10));
        on.synchronize();
      }
      while (comm.barrier().ok()) {
      }
      EXPECT_EQ(comm.status().code(), StatusCode::kTimeout);
    });
    EXPECT_EQ(testing::aborts_during_calls(), 0);
    testing::reset_nccl();
  }
}

TEST_F(NcclCalls, a_call_that_blocks_in_nccl_ends_when_its_peer_closes) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    testing::set_connecting(true);
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) return;  // closes its communicator
    const DeviceArray values = ones(on);
    const Status status = comm.run(sum(values), {.stream = on.stream});
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_THAT(status.ranks(), ElementsAre(1));
    on.synchronize();
  });
  EXPECT_EQ(testing::aborts_during_calls(), 0);
}

TEST_F(NcclCalls, calls_that_differ_are_a_mismatch_although_one_blocks_in_nccl) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    connect_and_hang(comm, on);
    const DeviceArray values = ones(on);
    const ReduceOp op = comm.rank() == 0 ? ReduceOp::kSum : ReduceOp::kMax;
    const Call call = Call::all_reduce(values.buffer(), values.buffer(), op);
    const Status status = comm.start(call, {.stream = on.stream}).wait();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    on.synchronize();
  });
  EXPECT_EQ(testing::aborts_during_calls(), 0);
}

TEST_F(NcclCalls, an_abort_from_another_thread_ends_a_call_that_blocks_in_nccl) {
  for (const int version : {22907, 22700}) {  // the latter cannot be revoked
    SCOPED_TRACE(version);
    const testing::OtherNccl other(version);
    on_ranks(2, [](Communicator& comm, const OnDevice& on) {
      connect_and_hang(comm, on);
      const DeviceArray values = ones(on);
      if (comm.rank() == 1) {
        while (comm.barrier().ok()) {
        }
        return;
      }
      std::thread aborting([&comm] {
        await_blocked_call();
        comm.abort("enough");
      });
      const auto begin = std::chrono::steady_clock::now();
      const Status status = comm.run(sum(values), {.stream = on.stream});
      aborting.join();
      EXPECT_EQ(status.code(), StatusCode::kAborted) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("enough"));
      EXPECT_LT(since(begin), std::chrono::seconds(10));
      on.synchronize();
    });
    await_communicators();
    EXPECT_EQ(testing::aborts_during_calls(), 0);
    testing::reset_nccl();
  }
}

TEST_F(NcclCalls, memory_can_be_released_while_another_thread_blocks_in_nccl) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    std::optional<DeviceWindow> window = comm.device_window(4096, on.device).value();
    connect_and_hang(comm, on);
    const DeviceArray values = ones(on);
    if (comm.rank() == 1) {
      while (comm.barrier().ok()) {
      }
      return;
    }
    std::thread releasing([&] {
      await_blocked_call();
      window.reset();
    });
    const Status status = comm.run(sum(values), {.timeout = std::chrono::milliseconds(300), .stream = on.stream});
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
    releasing.join();
    on.synchronize();
  });
}

/// Runs a call that hangs in NCCL, while another thread of rank 0 aborts the group.
void abort_while_hanging(Communicator& comm, const std::function<Status()>& call) {
  ASSERT_TRUE(comm.barrier().ok());
  std::thread aborting([&] {
    if (comm.rank() != 0) return;
    while (testing::blocked_threads() == 0) std::this_thread::yield();
    comm.abort("enough");
  });
  const auto begin = std::chrono::steady_clock::now();
  const Status status = call();
  aborting.join();
  EXPECT_EQ(status.code(), StatusCode::kAborted) << status.to_string();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(NcclCalls, an_abort_ends_an_initialization_that_hangs) {
  for (const int hanging : {0, 1}) {
    testing::hang_next("ncclCommInitRankConfig", hanging);
    on_ranks(2, [](Communicator& comm, const OnDevice& on) {
      const DeviceArray values = ones(on);
      abort_while_hanging(comm, [&] { return comm.run(sum(values), {.stream = on.stream}); });
    });
    await_communicators();
    EXPECT_EQ(testing::aborts_during_calls(), 0);
    testing::reset_nccl();
  }
}

TEST_F(NcclCalls, a_first_message_of_ranks_that_cannot_connect_fails_on_both_with_the_reason) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const DeviceArray values = ones(on);
    if (comm.rank() == 0) testing::fail_next("ncclGetUniqueId", nccl::ncclSystemError);
    const auto begin = std::chrono::steady_clock::now();
    const Call call = comm.rank() == 0 ? Call::send(values.buffer(), 1) : Call::recv(values.buffer(), 0);
    const Status status = comm.run(call, {.stream = on.stream});
    EXPECT_THAT(status.to_string(), HasSubstr("ncclGetUniqueId"));
    EXPECT_LT(since(begin), std::chrono::seconds(20));
  });
}

TEST_F(NcclCalls, an_abort_ends_a_split_that_hangs) {
  for (const int hanging : {0, 1}) {
    on_ranks(2, [hanging](Communicator& comm, const OnDevice& on) {
      connect(comm, on);
      if (comm.rank() == 0) testing::hang_next("ncclCommSplit", hanging);
      abort_while_hanging(comm, [&] { return comm.split(0, 0, {.name = "part"}).status(); });
    });
    EXPECT_EQ(testing::aborts_during_calls(), 0);
    testing::reset_nccl();
  }
}

TEST_F(NcclCalls, a_split_that_hangs_ends_at_its_timeout) {
  on_ranks(2, {.timeout = std::chrono::milliseconds(500)}, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    if (comm.rank() == 0) testing::hang_next("ncclCommSplit", 1);
    ASSERT_TRUE(comm.barrier().ok());
    const Status status = comm.split(0, 0, {.name = "part"}).status();
    EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("ncclCommSplit did not end in time"));
  });
  EXPECT_EQ(testing::aborts_during_calls(), 0);
}

TEST_F(NcclCalls, a_communicator_that_is_not_destroyed_in_time_is_aborted) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    if (comm.rank() == 0) testing::hang_next("ncclCommDestroy", 0);
    ASSERT_TRUE(comm.barrier().ok());
    const auto begin = std::chrono::steady_clock::now();
    comm.close();
    EXPECT_LT(since(begin), std::chrono::seconds(20));
  });
}

TEST_F(NcclCalls, several_communicators_are_destroyed_at_the_same_time) {
  on_ranks(3, [](Communicator& comm, const OnDevice& on) {
    const DeviceArray values = ones(on);
    // Connects pairs: rank 0 with 1, then 1 with 2.
    for (const auto& [from, to] : {std::pair{0, 1}, {1, 2}}) {
      if (comm.rank() == from) {
        ASSERT_TRUE(comm.send(values.buffer(), to, 0, {.stream = on.stream}).ok());
      } else if (comm.rank() == to) {
        ASSERT_TRUE(comm.recv(values.buffer(), from, 0, {.stream = on.stream}).ok());
      }
    }
    connect(comm, on);
    testing::BusyStream busy = runtime().make_stream_busy(on.stream);
    Work work = comm.start(sum(values), {.stream = on.stream});
    busy.release();
    ASSERT_TRUE(work.wait().ok());
  });
}

/// As long as it exists, no thread can be started: the default stack does not fit into the address space.
class NoThreads {
 public:
  NoThreads() {
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_t huge;
    EXPECT_EQ(pthread_attr_init(&huge), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 47), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    (void)pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    EXPECT_EQ(pthread_setattr_default_np(&before_), 0);
    (void)pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_ = {};
};

TEST_F(NcclCalls, a_thread_that_cannot_be_started_is_an_error_and_the_communicator_can_be_ended_later) {
  using comm::nccl::Connection;
  const auto no_check = [](std::string_view) { return Status(); };
  const comm::nccl::Place place{
      .library = **comm::nccl::library(), .runtime = runtime(), .device = {DeviceType::kCuda, 0}};
  comm::nccl::UniqueId id = {};
  ASSERT_EQ(place.library.call.GetUniqueId(&id), comm::nccl::kSuccess);
  {
    const NoThreads none;
    const auto refused = Connection::create(place);
    refused->begin_connecting(id, 0, 1, {});
    EXPECT_EQ(refused->finish_connecting(no_check).code(), StatusCode::kResourceExhausted);
  }
  const auto connection = Connection::create(place);
  connection->begin_connecting(id, 0, 1, {});
  ASSERT_TRUE(connection->finish_connecting(no_check).ok());
  {
    const NoThreads none;
    const Status refused = connection->run(
        "CommCount", [](auto*) { return 0; }, no_check);
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.to_string();
    connection->begin_destroying();
    connection->end(Connection::Rest::kNone);
  }
  EXPECT_EQ(testing::live_nccl().communicators, 1);
  connection->end(Connection::Rest::kNone);
  await_communicators();
  EXPECT_EQ(testing::calls_of("ncclCommAbort"), 1);
}

TEST_F(NcclCalls, a_borrowed_communicator_that_is_not_blocking_makes_calls) {
  nccl::ncclUniqueId id;
  ASSERT_EQ(nccl::ncclGetUniqueId(&id), nccl::ncclSuccess);
  testing::set_blocking(false);
  testing::run_thread_ranks(
      2, {.timeout = std::chrono::seconds(60), .select = testing::kByNccl}, [&](Communicator comm) {
        testing::HostRuntime::set_current_device(comm.rank());
        nccl::ncclComm_t own = nullptr;
        (void)nccl::ncclCommInitRank(&own, 2, id, comm.rank());
        for (nccl::ncclResult_t state = nccl::ncclInProgress; state == nccl::ncclInProgress;)
          ASSERT_EQ(nccl::ncclCommGetAsyncError(std::atomic_ref(own).load(), &state), nccl::ncclSuccess);
        ASSERT_TRUE(lend_nccl(comm, own).ok());
        const OnDevice on{runtime(), {DeviceType::kCuda, static_cast<std::int16_t>(comm.rank())}};
        connect(comm, on);
        connect(comm, on);
        comm.close();
        EXPECT_EQ(nccl::ncclCommDestroy(own), nccl::ncclSuccess);
      });
}

}  // namespace
}  // namespace accord
