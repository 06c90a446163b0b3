// Real kills while kernels of other processes wait for the killed rank: it is soon named, and no stream hangs.
#include <signal.h>

#include "multiproc/comm/device_processes.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OnDevice;
using testing::ProcessRanks;

class DeviceFailureProcesses : public testing::DeviceProcesses {
 protected:
  static DeviceArray ones(const OnDevice& on, std::size_t count) {
    return DeviceArray(on, std::vector<float>(count, 1.0F), DType::kFloat32);
  }
  static Call sum(const DeviceArray& values) {
    return Call::all_reduce(values.buffer(), values.buffer(), ReduceOp::kSum);
  }
};

TEST_F(DeviceFailureProcesses, a_rank_killed_while_kernels_wait_for_it_is_named) {
  CommunicatorOptions in_two_shots = by_plans();
  in_two_shots.select += ";all_reduce[memory=cuda]:0-inf=two_shot_packet";
  const struct {
    CommunicatorOptions options;
    std::size_t count;
  } cases[] = {{by_plans(), 64}, {by_plans(), 100000}, {in_two_shots, 30000}};  // packets; signals; packets
  for (const auto& one : cases) {
    const std::size_t count = one.count;
    const std::vector<int> exits = exits_of(4, one.options, 2, [&](Communicator& comm, const OnDevice& on) {
      const DeviceArray values = ones(on, count);
      EXPECT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
      on.synchronize();
      if (comm.rank() == 2) {
        ++board_->ready;
        pause();  // never calls again
      }
      Work started = comm.start(sum(values), {.stream = on.stream});
      EXPECT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());  // queued behind it
      ++board_->ready;
      const int seen = judge(started.wait(), 2, on);
      EXPECT_EQ(comm.run(sum(values), {.stream = on.stream}).code(), StatusCode::kPeerLost);
      return seen;
    });
    EXPECT_EQ(exits, (std::vector<int>{testing::kNamedTheDead, testing::kNamedTheDead, 128 + SIGKILL,
                                       testing::kNamedTheDead}));
  }
}

TEST_F(DeviceFailureProcesses, a_rank_killed_during_many_calls_is_named) {
  const std::vector<int> exits = exits_of(3, by_plans(), 0, [&](Communicator& comm, const OnDevice& on) {
    const DeviceArray small = ones(on, 50), large = ones(on, 1 << 18);
    for (int i = 0;; ++i) {
      const Status put = comm.run(sum(i % 2 == 0 ? small : large), {.stream = on.stream});
      on.synchronize();
      if (i == 5) ++board_->ready;
      if (!put.ok()) return judge(put, 0, on);
    }
  });
  EXPECT_EQ(exits, (std::vector<int>{128 + SIGKILL, testing::kNamedTheDead, testing::kNamedTheDead}));
}

TEST_F(DeviceFailureProcesses, a_rank_killed_before_it_connects_is_named) {
  const std::vector<int> exits = exits_of(3, by_plans(), 1, [&](Communicator& comm, const OnDevice& on) {
    ++board_->ready;
    if (comm.rank() == 1) pause();
    const DeviceArray values = ones(on, 64);
    return judge(comm.run(sum(values), {.stream = on.stream}), 1, on);
  });
  EXPECT_EQ(exits, (std::vector<int>{testing::kNamedTheDead, 128 + SIGKILL, testing::kNamedTheDead}));
}

TEST_F(DeviceFailureProcesses, survivors_continue_after_a_kill) {
  const std::vector<int> exits = exits_of(3, by_plans(), 1, [&](Communicator& comm, const OnDevice& on) {
    const DeviceArray values = ones(on, 3000);
    EXPECT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
    on.synchronize();
    ++board_->ready;
    if (comm.rank() == 1) pause();
    const int seen = judge(comm.start(sum(values), {.stream = on.stream}).wait(), 1, on);
    Result<Communicator> rest = comm.shrink("rest");
    EXPECT_TRUE(rest.ok()) << rest.status().to_string();
    if (!rest.ok()) return seen;
    const DeviceArray again = ones(on, 3000);
    EXPECT_TRUE(rest->run(sum(again), {.stream = on.stream}).ok());
    EXPECT_EQ(again.values<float>(), std::vector<float>(3000, 2.0F));
    return seen;
  });
  EXPECT_EQ(exits, (std::vector<int>{testing::kNamedTheDead, 128 + SIGKILL, testing::kNamedTheDead}));
}

/// A kernel that uses memory of a device which its owner has released ends the process (host_memory.cpp).
TEST_F(DeviceFailureProcesses, memory_of_a_rank_that_closes_is_kept_while_others_have_it_open) {
  on_ranks(3, by_plans(), [&](Communicator& comm, const OnDevice& on) {
    const DeviceArray values = ones(on, 64);
    EXPECT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
    on.synchronize();
    if (comm.rank() == 0) {  // its data has arrived before the other ranks look
      EXPECT_TRUE(comm.broadcast(values.buffer(), 0, {.stream = on.stream}).ok());
      on.synchronize();
      const std::size_t before = runtime().live().allocations;
      EXPECT_TRUE(is_soon([&] { return board_->ready.load() == 2; }));
      comm.close();
      comm::release_waiting();
      EXPECT_EQ(runtime().live().allocations, before);
      ++board_->done;
      return;
    }
    testing::BusyStream busy = runtime().make_stream_busy(on.stream);
    EXPECT_TRUE(comm.broadcast(values.buffer(), 0, {.stream = on.stream}).ok());
    ++board_->ready;
    EXPECT_TRUE(is_soon([&] { return board_->done.load() == 1; }));
    busy.release();
    EXPECT_EQ(values.values<float>(), std::vector<float>(64, 3.0F));
  });
}

TEST_F(DeviceFailureProcesses, a_killed_rank_is_named_while_a_copy_to_pageable_memory_waits_for_a_kernel) {
  const std::vector<int> exits = exits_of(2, by_plans(), 1, [&](Communicator& comm, const OnDevice& on) {
    runtime().set_pageable_copies_block(true);
    const DeviceArray values = ones(on, 64);
    EXPECT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
    on.synchronize();
    if (comm.rank() == 1) {
      ++board_->ready;
      pause();
    }
    EXPECT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
    std::thread copies([&] {
      while (!runtime().is_copying(on.device)) std::this_thread::yield();
      ++board_->ready;
    });
    std::vector<float> found(64);
    const Buffer from = values.buffer();
    EXPECT_TRUE(runtime().copy(found.data(), from.data, from.bytes(), on.device, on.stream).ok());
    copies.join();
    return judge(comm.barrier(), 1, on);
  });
  EXPECT_EQ(exits, (std::vector<int>{testing::kNamedTheDead, 128 + SIGKILL}));
}

TEST_F(DeviceFailureProcesses, later_calls_report_a_closed_rank_as_lost) {
  on_ranks(3, by_plans(), [&](Communicator& comm, const OnDevice& on) {
    const DeviceArray values = ones(on, 64);
    EXPECT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
    on.synchronize();
    if (comm.rank() == 1) return;  // closes its communicator
    const Status status = comm.start(sum(values), {.stream = on.stream}).wait();
    EXPECT_EQ(status.code(), StatusCode::kPeerLost) << status.to_string();
    EXPECT_THAT(status.ranks(), ElementsAre(1));
    EXPECT_THAT(status.message(), HasSubstr("rank 1 has closed its communicator"));
    on.synchronize();
  });
}

TEST_F(DeviceFailureProcesses, a_missing_rank_is_named_by_a_timeout) {
  for (const bool connected : {false, true}) {
    on_ranks(3, by_plans(), [&](Communicator& comm, const OnDevice& on) {
      const DeviceArray values = ones(on, 64);
      if (connected) {
        EXPECT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
        on.synchronize();
      }
      EXPECT_TRUE(comm.barrier().ok());
      if (comm.rank() == 1) {
        EXPECT_TRUE(is_soon([&] { return board_->done.load() == 2; }));
        return;
      }
      Work work = comm.start(sum(values), {.timeout = std::chrono::milliseconds(500), .stream = on.stream});
      const Status status = work.wait();
      on.synchronize();
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
      EXPECT_THAT(status.ranks(), ElementsAre(1));
      EXPECT_THAT(status.message(), HasSubstr("rank 1"));
      ++board_->done;
    });
  }
}

std::atomic<bool> a_callback_runs = false, the_process_exits = false;

// exit() takes down CUDA and NCCL, and a thread that is still inside them crashes.
TEST_F(DeviceFailureProcesses, a_process_exits_after_the_watch_closed_the_released_group) {
  ProcessRanks ranks(1, [](Rank) -> int {
    (void)std::atexit([] {  // runs after accord's, which the first call registers
      const std::vector<std::string> calls = testing::log_of(0);
      const auto destroys = [](const std::string& call) { return call.starts_with("ncclCommDestroy"); };
      _exit(std::any_of(calls.begin(), calls.end(), destroys) ? testing::kFine : testing::kWrong);
    });
    const OnDevice on{runtime(), {DeviceType::kCuda, 0}};
    const DeviceArray values = ones(on, 500);
    {
      const CommunicatorOptions options{.timeout = std::chrono::seconds(60), .select = testing::kByNccl};
      Communicator comm = Communicator::create(make_memory_store(), 0, 1, options).value();
      testing::BusyStream busy = runtime().make_stream_busy(on.stream);
      Work work = comm.start(sum(values), {.stream = on.stream});
      work.on_end([](const Status&) {
        a_callback_runs = true;
        while (!the_process_exits) std::this_thread::yield();
      });
      busy.release();
      while (!a_callback_runs) std::this_thread::yield();
    }
    the_process_exits = true;
    std::exit(testing::kWrong);
  });
  EXPECT_EQ(ranks.wait(0, Deadline::in(std::chrono::seconds(60))), testing::kFine);
}

}  // namespace
}  // namespace accord
