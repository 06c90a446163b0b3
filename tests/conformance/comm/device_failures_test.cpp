// Failures of calls on devices are reported on all ranks, name the rank at fault, and leave no stream hanging.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <latch>

#include "conformance/comm/device_sums.hpp"

namespace accord {
namespace {

using ::testing::Contains;
using testing::DeviceArray;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::OnDevice;

class DeviceFailures : public testing::DeviceSums {
 protected:
  static CommunicatorOptions within(std::chrono::milliseconds timeout) { return {.timeout = timeout}; }
};

TEST_F(DeviceFailures, waiting_ranks_name_a_missing_rank_and_release_their_streams) {
  on_ranks(3, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on);
    if (comm.rank() != 1) {
      Work work = comm.start(sum(values), {.timeout = std::chrono::milliseconds(200), .stream = on.stream});
      const Status status = work.wait();
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
      EXPECT_THAT(status.ranks(), ElementsAre(1));
      EXPECT_THAT(status.message(), HasSubstr("all_reduce of 64 x float32 (sum)"));
      EXPECT_THAT(status.message(), HasSubstr("rank 1 did not arrive in time"));
      on.synchronize();
    }
    while (comm.state() == CommunicatorState::kReady && comm.rank() == 1) {
      (void)comm.gone();
      if (!comm.barrier({.timeout = std::chrono::seconds(30)}).ok()) break;
    }
    EXPECT_EQ(comm.state(), CommunicatorState::kFailed);
    EXPECT_THAT(comm.run(sum(values), {.stream = on.stream}).message(), HasSubstr("rank 1 did not arrive in time"));
  });
}

TEST_F(DeviceFailures, a_call_in_a_stream_times_out_without_a_waiter) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on);
    if (comm.rank() == 0) {
      ASSERT_TRUE(comm.run(sum(values), {.timeout = std::chrono::milliseconds(100), .stream = on.stream}).ok());
      on.synchronize();  // without the watch, this would wait forever
      EXPECT_EQ(comm.status().code(), StatusCode::kTimeout);
    }
    while (comm.barrier().ok()) {
    }
    EXPECT_THAT(comm.status().ranks(), ElementsAre(1));
  });
}

TEST_F(DeviceFailures, calls_that_differ_are_a_mismatch_on_all_ranks) {
  on_ranks(3, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on);
    const ReduceOp op = comm.rank() == 2 ? ReduceOp::kMax : ReduceOp::kSum;
    Work work = comm.start(Call::all_reduce(values.buffer(), values.buffer(), op), {.stream = on.stream});
    const Status status = work.wait();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("all_reduce of 64 x float32 (max)"));
    EXPECT_THAT(status.message(), HasSubstr("all_reduce of 64 x float32 (sum)"));
    on.synchronize();
  });
}

TEST_F(DeviceFailures, one_rank_calling_on_the_cpu_is_a_mismatch_when_the_first_call_connects) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const DeviceArray values = ones(on);
    float number = 1;
    const Status status =
        comm.rank() == 0 ? comm.run(sum(values)) : comm.all_reduce(Buffer{&number, 1, DType::kFloat32}, ReduceOp::kSum);
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
  });
}

TEST_F(DeviceFailures, ranks_that_wait_for_a_closed_rank_report_it_lost) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on);
    if (comm.rank() == 1) return;  // closes its communicator
    Work work = comm.start(sum(values), {.stream = on.stream});
    const Status status = work.wait();
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_THAT(status.ranks(), ElementsAre(1));
    on.synchronize();
  });
}

TEST_F(DeviceFailures, a_message_fails_when_its_peer_closes) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on);
    const CallOptions options{.stream = on.stream};
    // One message that connects, and one that is never sent.
    if (comm.rank() == 1) {
      ASSERT_TRUE(comm.send(values.buffer(), 0, 0, options).ok());
      on.synchronize();
      return;
    }
    ASSERT_TRUE(comm.recv(values.buffer(), 1, 0, options).ok());
    const Status status = comm.start(Call::recv(values.buffer(), 1), options).wait();
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_THAT(status.ranks(), ElementsAre(1));
  });
}

TEST_F(DeviceFailures, abort_ends_works_in_flight_on_all_ranks) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on);
    if (comm.rank() == 1) {
      ASSERT_TRUE(comm.barrier().ok());
      return comm.abort("the user has had enough");
    }
    Work work = comm.start(sum(values), {.stream = on.stream});
    ASSERT_TRUE(comm.barrier().ok());
    const Status status = work.wait();
    EXPECT_EQ(status.code(), StatusCode::kAborted) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("the user has had enough"));
    on.synchronize();
  });
}

TEST_F(DeviceFailures, an_asynchronous_nccl_error_ends_calls) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on);
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) {
      testing::hang_next("ncclAllReduce", 1);
    }
    ASSERT_TRUE(comm.barrier().ok());
    Work work = comm.start(sum(values), {.stream = on.stream});
    if (comm.rank() == 1) testing::set_async_error(1, testing::nccl::ncclSystemError);
    const Status status = work.wait();
    EXPECT_EQ(status.code(), StatusCode::kInternal) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr("ncclCommGetAsyncError"));
    on.synchronize();
  });
}

TEST_F(DeviceFailures, a_peer_that_nccl_reports_lost_is_named_by_the_group) {
  for (const bool is_put : {false, true}) {
    on_ranks(2, [is_put](Communicator& comm, const OnDevice& on) {
      connect(comm, on);
      const DeviceArray values = ones(on);
      if (comm.rank() == 0 && is_put) testing::fail_next("ncclAllReduce", testing::nccl::ncclRemoteError, 0);
      ASSERT_TRUE(comm.barrier().ok());
      if (comm.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        return comm.abort("rank 1 stopped");
      }
      Work work = comm.start(sum(values), {.stream = on.stream});
      testing::set_async_error(0, testing::nccl::ncclRemoteError);
      const Status status = work.wait();
      EXPECT_THAT(status.ranks(), ElementsAre(1)) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("rank 1 stopped"));
      on.synchronize();
    });
    testing::reset_nccl();
  }
}

TEST_F(DeviceFailures, a_peer_lost_only_in_nccl_still_fails_the_group) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on);
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 0) {
      Work work = comm.start(sum(values), {.stream = on.stream});
      testing::set_async_error(0, testing::nccl::ncclRemoteError);
      const Status status = work.wait();
      EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("ncclCommGetAsyncError"));
      on.synchronize();
    }
    while (comm.barrier().ok()) {
    }
  });
}

TEST_F(DeviceFailures, all_ranks_report_a_rank_that_cannot_connect_and_the_group_stays_usable) {
  testing::fail_next("ncclGetUniqueId", testing::nccl::ncclSystemError);
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    const DeviceArray values = ones(on);
    const Status status = comm.run(sum(values), {.stream = on.stream});
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr("ncclGetUniqueId"));
    if (comm.rank() == 1) {
      EXPECT_EQ(status.code(), StatusCode::kPeerLost);
      EXPECT_THAT(status.ranks(), ElementsAre(0));
    }
    EXPECT_EQ(comm.state(), CommunicatorState::kReady);
    connect(comm, on);
  });
}

TEST_F(DeviceFailures, a_failed_or_hanging_connection_fails_on_all_ranks) {
  for (const bool hangs : {false, true}) {
    if (hangs) {
      testing::hang_next("ncclCommInitRankConfig", 1);
    } else {
      testing::fail_next("ncclCommInitRankConfig", testing::nccl::ncclSystemError, 1);
    }
    on_ranks(2, within(std::chrono::milliseconds(500)), [hangs](Communicator& comm, const OnDevice& on) {
      const DeviceArray values = ones(on);
      const Status status = comm.run(sum(values), {.stream = on.stream});
      EXPECT_EQ(status.code(), hangs ? StatusCode::kTimeout : StatusCode::kInternal) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("ncclCommInitRankConfig"));
      on.synchronize();
    });
  }
}

TEST_F(DeviceFailures, a_failure_of_any_nccl_function_fails_the_group) {
  for (const char* const function :
       {"ncclAllReduce", "ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd", "ncclRedOpCreatePreMulSum"}) {
    SCOPED_TRACE(function);
    on_ranks(2, [function](Communicator& comm, const OnDevice& on) {
      connect(comm, on);
      const DeviceArray values = ones(on), more(on, std::vector<float>(128), DType::kFloat32);
      ASSERT_TRUE(comm.barrier().ok());
      if (comm.rank() == 0) testing::fail_next(function, testing::nccl::ncclInternalError);
      ASSERT_TRUE(comm.barrier().ok());
      Status status;
      for (int i = 0; i < 3 && status.ok(); ++i) {
        const Call calls[] = {Call::all_reduce(values.buffer(), values.buffer(), Reduction::premul_sum(2.0)),
                              sum(values), Call::all_to_all(more.buffer(), more.buffer())};
        status = comm.start(std::span(&calls[i], 1), {.stream = on.stream}).wait();
      }
      EXPECT_EQ(status.code(), StatusCode::kInternal) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr(function));
      on.synchronize();
    });
    testing::reset_nccl();
  }
}

TEST_F(DeviceFailures, a_failed_call_holds_its_stream_while_its_memory_is_in_use) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const Stream other = on.runtime.create_stream(on.device, false).value();
    const DeviceArray values = ones(on), more(on, std::vector<float>(128), DType::kFloat32);
    // All started work waits for this, including the copy that an in-place call makes of its input.
    testing::BusyStream busy = runtime().make_stream_busy(other, on.device);
    Work first = comm.start(sum(values), {.stream = other});
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 0) testing::fail_next("ncclSend", testing::nccl::ncclInternalError, 0);
    ASSERT_TRUE(comm.barrier().ok());
    Work second = comm.start(Call::all_to_all(more.buffer(), more.buffer()), {.stream = on.stream});
    if (comm.rank() == 0) {
      EXPECT_EQ(second.wait().code(), StatusCode::kInternal);
    }
    std::atomic<bool> released = false, is_after = false;
    ASSERT_TRUE(runtime().enqueue(on.device, on.stream, [&] { is_after = released.load(); }).ok());
    // Both calls failed, but their memory is in use for as long as `other` is busy: the works still complete.
    EXPECT_FALSE(first.wait().ok());
    EXPECT_FALSE(second.wait().ok());
    released = true;
    busy.release();
    on.synchronize();
    if (comm.rank() == 0) {
      EXPECT_TRUE(is_after);
    }
    EXPECT_TRUE(on.runtime.synchronize(on.device, other).ok());
    // The peer's failure may reach rank 1 after its own call has begun: then only the works say when their memory is
    // free. A work that never began has nothing to wait for.
    EXPECT_EQ(first.block(on.stream).code(), first.wait().code());
    EXPECT_EQ(second.block(on.stream).code(), second.wait().code());
    on.synchronize();
    EXPECT_TRUE(on.runtime.destroy_stream(on.device, other).ok());
  });
}

TEST_F(DeviceFailures, a_failed_work_completes_after_its_kernels) {
  constexpr std::chrono::milliseconds kLess(300);  // than works of a failed group are given
  std::latch first_has_ended(1);
  on_ranks(2, [&](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on);
    testing::BusyStream busy = runtime().make_stream_busy(on.stream);
    Work work = comm.start(sum(values), {.stream = on.stream});
    ASSERT_TRUE(comm.barrier().ok());
    const auto before = std::chrono::steady_clock::now();
    comm.abort("as a test");
    const bool has_ended = work.wait_for(kLess / 3).has_value();
    // Kernels that are queued behind the caller's own may still begin.
    if (std::chrono::steady_clock::now() - before < kLess) {
      EXPECT_FALSE(has_ended);
    }
    if (comm.rank() == 1) first_has_ended.wait();  // or both ranks' kernels might meet and succeed
    busy.release();
    EXPECT_EQ(work.wait().code(), StatusCode::kAborted);
    if (comm.rank() == 0) first_has_ended.count_down();
    EXPECT_EQ(work.block(on.stream).code(), StatusCode::kAborted);
    on.synchronize();
  });
}

TEST_F(DeviceFailures, a_failure_of_any_runtime_call_leaks_nothing) {
  for (const char* const call :
       {"create_stream", "create_event", "record", "wait", "is_capturing", "allocate", "copy", "push_current"}) {
    SCOPED_TRACE(call);
    const std::string message = std::string("no more ") + call;
    on_ranks(1, [&](Communicator& comm, const OnDevice& on) {
      const DeviceArray values = ones(on);
      runtime().fail_next(call, Status(StatusCode::kResourceExhausted, message));
      const Status status =
          comm.start(Call::all_to_all(values.buffer(), values.buffer()), {.stream = on.stream}).wait();
      EXPECT_THAT(status.to_string(), HasSubstr(message));
    });
  }
}

TEST_F(DeviceFailures, nccl_sums_are_rejected_in_a_group_with_canonical_order) {
  on_ranks(2, {.timeout = std::chrono::seconds(60), .select = "deterministic=canonical"},
           [](Communicator& comm, const OnDevice& on) {
             const DeviceArray values = ones(on);
             // NCCL does not have the canonical order, and plans do not have factors.
             const Call call = Call::all_reduce(values.buffer(), values.buffer(), Reduction::premul_sum(2.0));
             const Status status = comm.run(call, {.stream = on.stream});
             EXPECT_EQ(status.code(), StatusCode::kUnsupported);
             EXPECT_THAT(status.message(), HasSubstr("deterministic=canonical"));
             EXPECT_TRUE(comm.broadcast(values.buffer(), 0, {.stream = on.stream}).ok());
             on.synchronize();
           });
}

TEST_F(DeviceFailures, without_devices_the_error_gives_the_reason) {
  device::replace_runtime(DeviceType::kCuda, nullptr);
  testing::run_thread_ranks(2, {.timeout = std::chrono::seconds(60)}, [](Communicator comm) {
    float number = 1;
    const Buffer there{&number, 1, DType::kFloat32, {DeviceType::kCuda, 0}};
    const Status status = comm.all_reduce(there, ReduceOp::kSum);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_TRUE(comm.barrier().ok());
  });
}

TEST_F(DeviceFailures, group_options_reach_nccl_and_must_be_equal) {
  const std::string hints = "max_ctas=8,min_ctas=2,cga_cluster_size=4,net_name=Socket,is_high_priority_stream=yes";
  on_ranks(2, {.timeout = std::chrono::seconds(60), .hints = hints}, connect);
  EXPECT_THAT(testing::log_of(1),
              Contains(HasSubstr("nranks=2 blocking=1 cgaClusterSize=4 minCTAs=2 maxCTAs=8 netName=Socket")));
  testing::clear_log();
  on_ranks(2, connect);
  EXPECT_THAT(testing::log_of(0), Contains(HasSubstr("ncclCommInitRankConfig rank=0 nranks=2 blocking=1")));
  EXPECT_THAT(testing::log_of(0), Not(Contains(HasSubstr("CTAs"))));

  const std::shared_ptr<Store> store = make_memory_store();
  std::vector<std::thread> ranks;
  for (Rank rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      const Status status =
          Communicator::create(store, rank, 2, {.hints = rank == 0 ? "max_ctas=8" : "max_ctas=16"}).status();
      EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("max_ctas=8"));
      EXPECT_THAT(status.message(), HasSubstr("max_ctas=16"));
    });
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace accord
