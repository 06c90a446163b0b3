// How expert calls on devices relate to streams, graphs and other ranks: the host never waits, and every wait on a
// device can be ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <thread>

#include "conformance/expert/device_step.hpp"
#include "sanitized.hpp"

namespace accord {
namespace {

using ::testing::AllOf;
using testing::DeviceArray;
using ::testing::ElementsAre;
using testing::ExpertStep;
using ::testing::HasSubstr;
using testing::OnDevice;

CommunicatorOptions within(Duration timeout) { return {.timeout = timeout}; }

class ExpertStreams : public testing::HostDevices {};

TEST_F(ExpertStreams, calls_return_before_their_stream_reaches_them) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    {
      const testing::BusyStream busy = runtime().make_stream_busy(on.stream);
      for (int i = 0; i < 3; ++i) step.all();
      ASSERT_TRUE(comm.barrier().ok());
    }
    step.expect_sums(2 * (1.0F + static_cast<float>(comm.rank())));
    EXPECT_EQ(step.group.statistics().calls, 6);
  });
}

TEST_F(ExpertStreams, steps_allocate_nothing) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    step.all();
    on.synchronize();
    ASSERT_TRUE(comm.barrier().ok());
    const testing::LiveObjects before = runtime().live();
    for (int i = 0; i < 5; ++i) step.all();
    on.synchronize();
    ASSERT_TRUE(comm.barrier().ok());
    const testing::LiveObjects after = runtime().live();
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.host_allocations, before.host_allocations);
    EXPECT_EQ(after.streams, before.streams);
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_F(ExpertStreams, a_graph_of_a_step_may_be_launched_again_with_different_choices) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    const auto put = [](const DeviceArray& array, auto values) { array.put(testing::bytes_of(values)); };
    ASSERT_TRUE(runtime().begin_capture(on.device, on.stream).ok());
    step.all();
    const Result<testing::Graph> graph = runtime().end_capture(on.device, on.stream);
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    const float mine = 1.0F + static_cast<float>(comm.rank());
    for (int launch = 0; launch < 4; ++launch) {
      // Every second time one choice fewer, on rank 0 only.
      const std::int64_t second = launch % 2 == 1 && comm.rank() == 0 ? -1 : 3;
      put(step.ids, std::vector<std::int64_t>{0, second, 0, second});
      put(step.x, std::vector<float>(8, mine + static_cast<float>(launch)));
      ASSERT_TRUE(runtime().launch(*graph, on.stream).ok());
      step.expect_sums((second < 0 ? 1 : 2) * (mine + static_cast<float>(launch)));
      ASSERT_TRUE(step.handle.fetch(on.stream).ok());
      EXPECT_EQ(step.handle.recv_rows(), comm.rank() == 0 || launch % 2 == 0 ? 4 : 2);
    }
    put(step.x, std::vector<float>(8, mine));
    step.all();  // calls still work afterwards
    step.expect_sums((comm.rank() == 0 ? 1 : 2) * mine);
    ASSERT_TRUE(comm.barrier().ok());
  });
}

TEST_F(ExpertStreams, a_missing_rank_is_named_and_kernels_that_wait_for_it_end) {
  std::promise<void> ended;
  std::shared_future<void> end = ended.get_future().share();
  on_ranks(2, within(std::chrono::milliseconds(400)), [&](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    step.all();
    if (comm.rank() == 1) {
      end.wait();
      EXPECT_EQ(step.combine().code(), StatusCode::kTimeout);
      return;
    }
    ASSERT_TRUE(step.prepare().ok());
    const Status failure = step.failure();
    EXPECT_EQ(failure.code(), StatusCode::kTimeout) << failure.to_string();
    EXPECT_THAT(failure.message(),
                AllOf(HasSubstr("prepare of handle 0, prepared 1 times"), HasSubstr("rank 1 did not arrive in time")));
    EXPECT_THAT(failure.ranks(), ElementsAre(1));
    EXPECT_EQ(step.handle.fetch(on.stream).code(), StatusCode::kAborted);
    EXPECT_FALSE(step.handle.prepared());
    EXPECT_EQ(step.handle.recv_rows(), 0);
    ended.set_value();
  });
}

TEST_F(ExpertStreams, different_calls_are_a_mismatch_that_names_them) {
  if (testing::kThreadSanitizer) GTEST_SKIP() << "calls that differ write to the same places";
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    ASSERT_TRUE(step.prepare().ok());
    // Kernels that only wait for signals might be released by those of a different call, so rank 1's kernels do not
    // start before the ranks have seen that their calls differ.
    std::optional<testing::BusyStream> busy;
    if (comm.rank() == 1) busy.emplace(runtime().make_stream_busy(on.stream));
    ASSERT_TRUE((comm.rank() == 0 ? step.dispatch() : step.combine()).ok());
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (busy && step.group.communicator().status().ok() && std::chrono::steady_clock::now() < late)
      std::this_thread::yield();
    busy.reset();
    const Status failure = step.failure();
    EXPECT_EQ(failure.code(), StatusCode::kMismatch) << failure.to_string();
    EXPECT_THAT(failure.message(), AllOf(HasSubstr("dispatch of handle 0, prepared 1 times, float32 to float32"),
                                         HasSubstr("combine of handle 0, prepared 1 times")));
  });
}

TEST_F(ExpertStreams, a_rank_that_closes_ends_the_waits_of_its_peers) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    step.all();
    if (comm.rank() == 1) return step.group.close();
    (void)step.prepare();
    const Status failure = step.failure();
    EXPECT_EQ(failure.code(), StatusCode::kPeerLost) << failure.to_string();
    EXPECT_THAT(failure.ranks(), ElementsAre(1));
  });
}

TEST_F(ExpertStreams, a_rank_that_declines_fails_the_group) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    ASSERT_TRUE(step.prepare().ok());
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 0) {
      (void)step.dispatch();  // rejected, or ended in progress
    } else {
      EXPECT_TRUE(step.group.decline(step.handle, false, {StatusCode::kInvalidArgument, "it has no gradient"}).ok());
    }
    const Status failure = step.failure();
    EXPECT_EQ(failure.code(), StatusCode::kAborted) << failure.to_string();
    EXPECT_THAT(failure.message(), HasSubstr("it has no gradient"));
  });
}

TEST_F(ExpertStreams, a_kernel_that_cannot_be_launched_fails_the_group) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    step.all();
    on.synchronize();
    ASSERT_TRUE(comm.barrier().ok());
    if (comm.rank() == 1) {
      runtime().fail_next("launch", {StatusCode::kInternal, "no more kernels"});
      EXPECT_THAT(step.prepare().message(), HasSubstr("no more kernels"));
    } else {
      ASSERT_TRUE(comm.barrier().ok());
      (void)step.prepare();
    }
    if (comm.rank() == 1) {
      ASSERT_TRUE(comm.barrier().ok());
    }
    EXPECT_THAT(step.failure().message(), HasSubstr("no more kernels"));
  });
}

TEST_F(ExpertStreams, invalid_arguments_are_reported_to_the_rank_and_the_group_stays_usable) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    const auto expect_refused = [](const Status& status, StatusCode code, const std::string& text) {
      EXPECT_EQ(status.code(), code) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr(text));
    };
    expect_refused(step.dispatch(), StatusCode::kWrongState, "handle 0 is not prepared");
    const std::vector<std::int64_t> here = {0, 3};
    expect_refused(step.group.prepare(step.handle, {.ids = {here.data(), 2, DType::kInt64}, .stream = on.stream}),
                   StatusCode::kInvalidArgument, "prepare on group \"world.experts\": ids is on cpu, but the group's");
    ASSERT_TRUE(step.prepare().ok());
    std::vector<float> x(8);
    expect_refused(step.group.dispatch(step.handle, {.tokens = {x.data(), 8, DType::kFloat32},
                                                     .recv_tokens = step.recv.buffer(),
                                                     .stream = on.stream}),
                   StatusCode::kInvalidArgument, "tokens is on cpu");
    expect_refused(step.group.dispatch(step.handle, {.tokens = step.x.part(0, 4), .recv_tokens = step.recv.buffer()}),
                   StatusCode::kInvalidArgument, "tokens has 4 elements, it has to have 2 x 4 = 8");
    expect_refused(step.group.dispatch(step.handle, {.tokens = step.x.buffer(),
                                                     .recv_tokens = {x.data(), 8, DType::kFloat32, {}},
                                                     .stream = on.stream}),
                   StatusCode::kInvalidArgument, "recv_tokens is on cpu");
    const Window window = comm.window(64).value();
    expect_refused(step.group.add_window(window), StatusCode::kUnsupported, "windows hold CPU memory");
    step.all();
    step.expect_sums(2 * (1.0F + static_cast<float>(comm.rank())));
  });
}

TEST_F(ExpertStreams, a_prepare_with_invalid_arguments_leaves_the_handle_unprepared) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    step.all();
    const std::vector<std::int64_t> here = {0, 3};
    EXPECT_EQ(step.group.prepare(step.handle, {.ids = {here.data(), 2, DType::kInt64}, .stream = on.stream}).code(),
              StatusCode::kInvalidArgument);
    EXPECT_FALSE(step.handle.prepared());
    EXPECT_EQ(step.dispatch().code(), StatusCode::kWrongState);
    step.all();
    step.expect_sums(2 * (1.0F + static_cast<float>(comm.rank())));
  });
}

TEST_F(ExpertStreams, a_rank_with_room_for_slots_that_omits_the_weights_of_others_is_a_mismatch) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    ExpertStep step(comm, on);
    const DeviceArray weights(on, std::vector<float>(4, 1.0F), DType::kFloat32),
        recv_weights(on, std::vector<float>(16), DType::kFloat32);
    const bool has_tokens = comm.rank() == 0;
    ASSERT_TRUE(
        step.group.prepare(step.handle, {.ids = step.ids.part(0, has_tokens ? 4 : 0), .stream = on.stream}).ok());
    ExpertDispatch call{.tokens = step.x.part(0, has_tokens ? 8 : 0), .recv_tokens = step.recv.buffer()};
    call.stream = on.stream;
    if (has_tokens) call.weights = weights.buffer(), call.recv_weights = recv_weights.buffer();
    // Rank 1's kernels do not start before the ranks have seen that their calls differ.
    std::optional<testing::BusyStream> busy;
    if (!has_tokens) busy.emplace(runtime().make_stream_busy(on.stream));
    ASSERT_TRUE(step.group.dispatch(step.handle, call).ok());
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (busy && step.group.communicator().status().ok() && std::chrono::steady_clock::now() < late)
      std::this_thread::yield();
    ASSERT_TRUE(comm.barrier().ok());
    busy.reset();
    // Rank 0 waited for no rows, so it learns of the failure in its next call.
    const Status failure = has_tokens ? step.combine() : step.failure();
    EXPECT_EQ(failure.code(), StatusCode::kMismatch) << failure.to_string();
    EXPECT_THAT(failure.message(), HasSubstr("float32 to float32, with weights"));
  });
}

TEST_F(ExpertStreams, an_invalid_group_is_rejected_on_all_ranks) {
  const auto expect_refused = [](const std::function<void(ExpertGroupConfig&, Rank)>& change, StatusCode code,
                                 const std::string& text) {
    on_ranks(2, [&](Communicator& comm, const OnDevice& on) {
      ExpertGroupConfig changed = testing::small_expert_config(on);
      change(changed, comm.rank());
      const Result<ExpertGroup> group = ExpertGroup::create(comm, changed);
      ASSERT_FALSE(group.ok());
      EXPECT_EQ(group.status().code(), code) << group.status().to_string();
      EXPECT_THAT(group.status().message(), HasSubstr(text));
      EXPECT_TRUE(comm.barrier().ok());
    });
  };
  expect_refused([](auto& c, Rank) { c.algorithm = ExpertAlgorithm::kHierarchical; }, StatusCode::kUnsupported,
                 "algorithm is hierarchical, which is not supported on GPUs; device is cuda:0");
  expect_refused([](auto& c, Rank) { c.staging_bytes = 4096; }, StatusCode::kUnsupported, "staging_bytes is 4096");
  expect_refused([](auto& c, Rank) { c.ranks_per_host = 1; }, StatusCode::kUnsupported, "ranks_per_host is 1");
  expect_refused([](auto& c, Rank rank) { c.device.index = rank == 1 ? 99 : 0; }, StatusCode::kInvalidArgument,
                 "rank 1: device is cuda:99, but this rank has 8 devices of that type");
  expect_refused([](auto& c, Rank rank) { c.device = rank == 1 ? Device{} : c.device; }, StatusCode::kMismatch,
                 "device type is 1 on rank 0 and 0 on rank 1");
  runtime().fail_next("reach", {StatusCode::kUnsupported, "no way between them"});
  expect_refused([](auto& c, Rank) { c.algorithm = ExpertAlgorithm::kDirect; }, StatusCode::kUnsupported,
                 "no way between them");
  for (const char* const call : {"allocate", "create_stream", "copy", "multiprocessors"}) {
    SCOPED_TRACE(call);
    on_ranks(2, [&](Communicator& comm, const OnDevice& on) {
      ASSERT_TRUE(comm.barrier().ok());  // all ranks have their streams
      if (comm.rank() == 1) runtime().fail_next(call, {StatusCode::kResourceExhausted, "no more of that"});
      ASSERT_TRUE(comm.barrier().ok());
      const Result<ExpertGroup> group = ExpertGroup::create(comm, testing::small_expert_config(on));
      if (!group.ok()) {
        EXPECT_THAT(group.status().message(), HasSubstr("no more of that"));
      }
      ASSERT_TRUE(comm.barrier().ok());
    });
  }
}

TEST_F(ExpertStreams, handles_may_outlive_their_group) {
  on_ranks(2, [](Communicator& comm, const OnDevice& on) {
    std::optional<ExpertHandle> kept;
    {
      ExpertStep step(comm, on);
      step.all();
      kept = step.handle;
    }
    EXPECT_EQ(kept->recv_rows(), 4);
  });
}

}  // namespace
}  // namespace accord
