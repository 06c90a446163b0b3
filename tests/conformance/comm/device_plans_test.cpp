// Calls on devices by accord's own plans, with and without NCCL available.
#include <gmock/gmock.h>

#include <atomic>
#include <random>
#include <thread>

#include "accord/plan.hpp"
#include "comm/group.hpp"
#include "conformance/comm/device_suite.hpp"
#include "conformance/comm/device_sums.hpp"
#include "device/nccl_control.hpp"
#include "plan/builder.hpp"
#include "plan/json.hpp"

namespace accord {
namespace {

using ::testing::Contains;
using testing::DeviceArray;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kByPlans;
using ::testing::Not;
using testing::OnDevice;

class DevicePlans : public testing::DeviceSums {
 protected:
  static CommunicatorOptions by_two_shot_packets() {
    CommunicatorOptions options = by_plans();
    options.select += ";all_reduce[memory=cuda]:0-inf=two_shot_packet";
    return options;
  }
  static std::vector<float> some(int rank, std::size_t count) {
    std::mt19937 random(static_cast<unsigned>(rank) + 1);
    std::vector<float> values(count);
    for (float& value : values) value = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 30) - 40);
    return values;
  }
};

TEST_F(DevicePlans, reductions_match_a_plain_computation) {
  for (const int size : {1, 2, 3, 4}) {
    on_ranks(size, by_plans(), [](Communicator& comm, const OnDevice& on) {
      // 8 integer types with 8 ops, 6 float types with 6 (premul_sum by NCCL), 2 complex types with sum, product and
      // avg, bool with 7.
      EXPECT_EQ(testing::check_device_reductions(comm, on), 8 * 8 + 6 * 6 - (comm.size() == 1 ? 2 : 0) + 2 * 3 + 7);
    });
  }
}

TEST_F(DevicePlans, elements_of_every_dtype_reach_their_destination) {
  for (const int size : {1, 2, 4}) on_ranks(size, by_plans(), testing::check_device_data_movement);
}

TEST_F(DevicePlans, messages_works_prepared_calls_and_invalid_calls) {
  for (const int size : {1, 2}) {
    on_ranks(size, by_plans(), testing::check_device_messages);
    on_ranks(size, by_plans(), testing::check_device_works);
    on_ranks(size, by_plans(), testing::check_device_prepared);
    on_ranks(size, by_plans(), testing::check_invalid_device_calls);
  }
}

TEST_F(DevicePlans, sums_are_bit_identical_to_the_cpu_and_nccl_is_not_called) {
  for (const std::string& select :
       {std::string(kByPlans), std::string("deterministic=canonical"), by_two_shot_packets().select}) {
    testing::clear_log();
    on_ranks(3, {.timeout = std::chrono::seconds(60), .select = select}, [](Communicator& comm, const OnDevice& on) {
      for (const std::size_t count : {std::size_t{5}, std::size_t{1000}, std::size_t{70000}}) {
        std::vector<float> expected = some(comm.rank(), count);
        const DeviceArray values(on, expected, DType::kFloat32);
        ASSERT_TRUE(comm.all_reduce(Buffer{expected.data(), count, DType::kFloat32}, ReduceOp::kSum).ok());
        ASSERT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
        EXPECT_EQ(values.values<float>(), expected) << count;
      }
    });
    EXPECT_THAT(testing::log_of(0), Not(Contains(HasSubstr("ncclAllReduce"))));
  }
}

TEST_F(DevicePlans, by_default_plans_serve_small_calls_and_nccl_serves_large_ones) {
  on_ranks(2, {.timeout = std::chrono::seconds(60), .select = "send_recv:0-inf=direct"},
           [](Communicator& comm, const OnDevice& on) {
             for (const std::size_t count : {std::size_t{1000}, std::size_t{100000}}) {
               const DeviceArray values(on, std::vector<float>(count, 1.0F), DType::kFloat32);
               ASSERT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
               EXPECT_EQ(values.values<float>(), std::vector<float>(count, 2.0F));
             }
           });
  const std::vector<std::string> log = testing::log_of(0);
  EXPECT_EQ(
      std::count_if(log.begin(), log.end(), [](const std::string& line) { return line.find("ncclAllReduce") == 0; }),
      1);
}

TEST_F(DevicePlans, calls_of_both_backends_may_start_together) {
  on_ranks(2, by_plans(), [](Communicator& comm, const OnDevice& on) {
    const DeviceArray first = ones(on), second = ones(on), third = ones(on);
    const Call calls[] = {sum(first), Call::all_reduce(second.buffer(), second.buffer(), Reduction::premul_sum(3.0)),
                          sum(third)};
    ASSERT_TRUE(comm.run(calls, {.stream = on.stream}).ok());
    EXPECT_EQ(first.values<float>(), std::vector<float>(64, 2.0F));
    EXPECT_EQ(second.values<float>(), std::vector<float>(64, 6.0F));
    EXPECT_EQ(third.values<float>(), std::vector<float>(64, 2.0F));
  });
}

// The plan has two lanes. With as many instances as there are multiprocessors it would have twice as many blocks as
// can run at the same time.
TEST_F(DevicePlans, a_user_plan_runs_on_devices) {
  plan::PlanBuilder builder("device_lanes", {.collective = Collective::kAllGather}, 2,
                            {.input_chunks = 2, .output_chunks = 4, .scratch_chunks = 2});
  for (const Rank rank : builder.ranks()) {
    for (const int lane : {0, 1}) {
      const Rank peer = 1 - rank;
      auto on = builder.on(rank);
      on.lane(lane);
      on.copy(plan::input(rank, lane), {plan::scratch(rank, lane), plan::output(rank, 2 * rank + lane)});
      on.signal(peer, lane).wait(peer, lane);
      on.copy(plan::scratch(peer, lane), {plan::output(rank, 2 * peer + lane)});
    }
  }
  const plan::Plan made = std::move(builder).build().value();
  const Status registered = register_plan(plan::to_json(made), {});
  ASSERT_TRUE(registered.ok()) << registered.to_string();
  const CommunicatorOptions options{.timeout = std::chrono::seconds(60),
                                    .select = "all_gather[memory=cuda]:0-inf=device_lanes",
                                    .hints = "max_ctas=16"};
  on_ranks(2, options, [](Communicator& comm, const OnDevice& on) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{200000}}) {
      const DeviceArray input(on, some(comm.rank(), count), DType::kFloat32);
      const DeviceArray output(on, std::vector<float>(2 * count), DType::kFloat32);
      const Status status = comm.run(Call::all_gather(input.buffer(), output.buffer()), {.stream = on.stream});
      ASSERT_TRUE(status.ok()) << status.to_string();
      std::vector<float> expected = some(0, count);
      for (const float value : some(1, count)) expected.push_back(value);
      EXPECT_EQ(output.values<float>(), expected) << count;
    }
  });
}

// Each rank copies one half to the peer's scratch, and puts the other half into packets.
TEST_F(DevicePlans, a_user_plan_whose_packets_order_other_memory_is_left_to_nccl) {
  for (const bool signals : {true, false}) {
    const std::string name = signals ? "device_mixed_signals" : "device_mixed_packets";
    plan::PlanBuilder builder(name, {.collective = Collective::kAllGather}, 2,
                              {.input_chunks = 2, .output_chunks = 4, .scratch_chunks = 1, .packet_chunks = 2});
    builder.set_pacing(plan::Pacing::kByPlan);
    for (const Rank rank : builder.ranks()) {
      const Rank peer = 1 - rank;
      auto on = builder.on(rank);
      for (const int half : {0, 1}) on.copy(plan::input(rank, half), {plan::output(rank, 2 * rank + half)});
      on.copy(plan::input(rank, 0), {plan::scratch(peer, 0)});
      if (signals) on.signal(peer);
      on.put_packets(plan::input(rank, 1), plan::packets(peer, rank));
      on.copy(plan::packets(rank, peer), {plan::output(rank, 2 * peer + 1)});
      if (signals) on.wait(peer);
      on.copy(plan::scratch(rank, 0), {plan::output(rank, 2 * peer)});
    }
    const Status registered = register_plan(plan::to_json(std::move(builder).build().value()), {});
    ASSERT_TRUE(registered.ok()) << registered.to_string();
    testing::clear_log();
    const CommunicatorOptions options{.timeout = std::chrono::seconds(60),
                                      .select = "all_gather[memory=cuda]:0-inf=" + name};
    on_ranks(2, options, [](Communicator& comm, const OnDevice& on) {
      for (const std::size_t count : {std::size_t{3}, std::size_t{100000}}) {
        const DeviceArray input(on, some(comm.rank(), count), DType::kFloat32);
        const DeviceArray output(on, std::vector<float>(2 * count), DType::kFloat32);
        const Status status = comm.run(Call::all_gather(input.buffer(), output.buffer()), {.stream = on.stream});
        ASSERT_TRUE(status.ok()) << status.to_string();
        std::vector<float> expected = some(0, count);
        for (const float value : some(1, count)) expected.push_back(value);
        EXPECT_EQ(output.values<float>(), expected) << count;
      }
    });
    const std::vector<std::string> log = testing::log_of(0);
    const bool by_nccl = std::ranges::any_of(log, [](const auto& line) { return line.find("ncclAllGather") == 0; });
    EXPECT_EQ(by_nccl, !signals);
  }
}

TEST_F(DevicePlans, ranks_that_share_a_gpu_divide_its_multiprocessors) {
  CommunicatorOptions options = by_plans();
  options.hints = "";
  on_ranks(3, options, [](Communicator& comm, const OnDevice& on) {
    const OnDevice shared{
        on.runtime, {DeviceType::kCuda, 0}, on.runtime.create_stream({DeviceType::kCuda, 0}, false).value()};
    {
      const DeviceArray values(shared, std::vector<double>(100000, 1.0), DType::kFloat64);
      ASSERT_TRUE(comm.run(sum(values), {.stream = shared.stream}).ok());
      EXPECT_EQ(values.values<double>(), std::vector<double>(100000, 3.0));
    }
    ASSERT_TRUE(comm.barrier().ok());
    EXPECT_LE(runtime().most_blocks("run_plan_float64"), runtime().multiprocessors(shared.device).value() / 3);
    EXPECT_TRUE(on.runtime.destroy_stream(shared.device, shared.stream).ok());
  });
}

TEST_F(DevicePlans, without_peer_access_nccl_serves_and_without_nccl_the_error_names_both) {
  ::testing::internal::CaptureStderr();
  on_ranks(2, by_plans(), [](Communicator& comm, const OnDevice& on) {
    if (comm.rank() == 1) runtime().fail_next("reach", Status(StatusCode::kUnsupported, "no way to cuda:0"));
    ASSERT_TRUE(comm.barrier().ok());
    testing::clear_log();
    connect(comm, on);
    EXPECT_THAT(testing::log_of(comm.rank()), Contains(HasSubstr("ncclAllReduce")));
    const DeviceArray bits(on, std::vector<std::int32_t>{6}, DType::kInt32);
    const Status status = comm.all_reduce(bits.buffer(), ReduceOp::kBor, {.stream = on.stream});
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_THAT(status.message(), HasSubstr("bor of int32"));
    EXPECT_THAT(status.message(), HasSubstr("no way to cuda:0"));
    EXPECT_EQ(comm.state(), CommunicatorState::kReady);
  });
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("accord warning] group \"world\": no plans on GPUs: "));
  EXPECT_EQ(text.find("no way to cuda:0"), text.rfind("no way to cuda:0")) << text;
}

TEST_F(DevicePlans, a_capture_holds_calls_and_each_launch_runs_them) {
  for (const CommunicatorOptions& options : {by_plans(), by_two_shot_packets()}) {
    on_ranks(2, options, [](Communicator& comm, const OnDevice& on) {
      connect(comm, on);
      const DeviceArray values = ones(on);
      ASSERT_TRUE(runtime().begin_capture(on.device, on.stream).ok());
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
      const testing::Graph graph = runtime().end_capture(on.device, on.stream).value();
      EXPECT_EQ(values.values<float>(), std::vector<float>(64, 1.0F));
      for (int i = 0; i < 4; ++i) ASSERT_TRUE(runtime().launch(graph, on.stream).ok());
      ASSERT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
      EXPECT_EQ(values.values<float>(), std::vector<float>(64, 8192.0F));
    });
  }
}

// Engines do this if only some ranks can instantiate a graph.
TEST_F(DevicePlans, one_rank_may_launch_a_graph_of_calls_that_another_makes_directly) {
  on_ranks(2, by_plans(), [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on), all(on, std::vector<float>(128), DType::kFloat32);
    if (comm.rank() == 0) {
      ASSERT_TRUE(runtime().begin_capture(on.device, on.stream).ok());
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
      const testing::Graph graph = runtime().end_capture(on.device, on.stream).value();
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(runtime().launch(graph, on.stream).ok());
    } else {
      for (int i = 0; i < 6; ++i) ASSERT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
    }
    for (int i = 0; i < 4; ++i) {
      const Status gathered = comm.start(Call::all_gather(values.buffer(), all.buffer()), {.stream = on.stream}).wait();
      ASSERT_TRUE(gathered.ok()) << gathered.to_string();
    }
    EXPECT_EQ(all.values<float>(), std::vector<float>(128, 64.0F));
  });
}

TEST_F(DevicePlans, calls_in_different_streams_run_in_call_order) {
  on_ranks(2, by_plans(), [](Communicator& comm, const OnDevice& on) {
    const Stream other = runtime().create_stream(on.device, false).value();
    const DeviceArray first = ones(on), second = ones(on);
    ASSERT_TRUE(comm.run(sum(first), {.stream = on.stream}).ok());
    testing::BusyStream busy = runtime().make_stream_busy(on.stream);
    ASSERT_TRUE(comm.run(sum(first), {.stream = on.stream}).ok());
    Work behind = comm.start(sum(second), {.stream = other});
    EXPECT_FALSE(behind.test());
    busy.release();
    EXPECT_TRUE(behind.wait().ok());
    EXPECT_EQ(first.values<float>(), std::vector<float>(64, 4.0F));
    EXPECT_TRUE(runtime().synchronize(on.device, other).ok());
    EXPECT_TRUE(runtime().destroy_stream(on.device, other).ok());
  });
}

TEST_F(DevicePlans, a_call_follows_the_previous_one_across_a_capture) {
  on_ranks(1, by_plans(), [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const Stream captured = runtime().create_stream(on.device, false).value();
    const Stream other = runtime().create_stream(on.device, false).value();
    const DeviceArray from = ones(on), between = ones(on), to = ones(on);
    const std::vector<float> twos(64, 2.0F);
    {
      const testing::BusyStream busy = runtime().make_stream_busy(on.stream);
      ASSERT_TRUE(runtime().copy(from.buffer().data, twos.data(), from.buffer().bytes(), on.device, on.stream).ok());
      ASSERT_TRUE(comm.run(sum(from), {.stream = on.stream}).ok());
      const Result<device::Graph> graph =
          runtime().capture(on.device, captured, [&] { return comm.run(sum(between), {.stream = captured}); });
      ASSERT_TRUE(graph.ok()) << graph.status().to_string();
      EXPECT_TRUE(runtime().destroy_graph(*graph).ok());
      ASSERT_TRUE(comm.run(Call::all_reduce(from.buffer(), to.buffer(), ReduceOp::kSum), {.stream = other}).ok());
    }
    for (const Stream stream : {captured, other}) {
      EXPECT_TRUE(runtime().synchronize(on.device, stream).ok());
      EXPECT_TRUE(runtime().destroy_stream(on.device, stream).ok());
    }
    EXPECT_EQ(to.values<float>(), twos);
  });
}

// The blocked call stands for a launch that waits for earlier ones.
TEST_F(DevicePlans, an_abort_ends_waits_while_a_call_of_this_rank_blocks) {
  std::atomic<bool> is_blocked = false;
  on_ranks(2, by_plans(), [&](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    if (comm.rank() == 1) {
      while (!is_blocked.load()) std::this_thread::yield();
      return comm.abort("enough");
    }
    const DeviceArray values = ones(on);
    ASSERT_TRUE(comm.run(sum(values), {.stream = on.stream}).ok());
    comm::DeviceChannel& channel = comm.group()->device_channel();
    const std::shared_ptr<comm::StopWord> word = channel.stop_word(on.device).value();
    const auto is_set = [&] { return std::atomic_ref(*const_cast<std::uint64_t*>(word->get())) != 0; };
    const auto put = [&] {
      is_blocked = true;
      const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!is_set() && std::chrono::steady_clock::now() < late) std::this_thread::yield();
      EXPECT_TRUE(is_set()) << "the waits end";
      on.synchronize();
      return Status();
    };
    (void)channel.run({.device = on.device, .stream = on.stream}, put);
    EXPECT_EQ(comm.barrier().code(), StatusCode::kAborted);
  });
}

TEST_F(DevicePlans, a_missing_rank_is_named_and_the_streams_of_the_others_are_released) {
  on_ranks(3, by_plans(), [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on);
    if (comm.rank() != 1) {
      const Status status =
          comm.start(sum(values), {.timeout = std::chrono::milliseconds(200), .stream = on.stream}).wait();
      EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr("rank 1 did not arrive in time"));
      on.synchronize();
    }
    while (comm.barrier({.timeout = std::chrono::seconds(30)}).ok()) {
    }
    EXPECT_THAT(comm.status().ranks(), ElementsAre(1));
  });
}

TEST_F(DevicePlans, calls_that_differ_are_a_mismatch_and_an_abort_ends_all_calls) {
  on_ranks(2, by_plans(), [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values(on, std::vector<float>(20000, 1.0F), DType::kFloat32);
    const std::size_t count = comm.rank() == 0 ? 20000 : 64;
    const Buffer part = values.part(0, count);
    const Status status = comm.start(Call::all_reduce(part, part, ReduceOp::kSum), {.stream = on.stream}).wait();
    EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.to_string();
    on.synchronize();
  });
  on_ranks(2, by_plans(), [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    const DeviceArray values = ones(on);
    if (comm.rank() == 1) return comm.abort("enough");
    const Status status = comm.start(sum(values), {.stream = on.stream}).wait();
    EXPECT_EQ(status.code(), StatusCode::kAborted) << status.to_string();
    on.synchronize();
  });
}

TEST_F(DevicePlans, parts_of_a_group_have_their_own_memory) {
  on_ranks(4, by_plans(), [](Communicator& comm, const OnDevice& on) {
    connect(comm, on);
    std::optional<Communicator> half = comm.split(comm.rank() % 2, comm.rank(), "half").value();
    const DeviceArray first(on, std::vector<float>(3000, 1.0F), DType::kFloat32), second = ones(on);
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(half->run(sum(first), {.stream = on.stream}).ok());
      ASSERT_TRUE(comm.run(sum(second), {.stream = on.stream}).ok());
    }
    EXPECT_EQ(first.values<float>(), std::vector<float>(3000, 32.0F));
    EXPECT_EQ(second.values<float>(), std::vector<float>(64, 1024.0F));
  });
}

TEST_F(DevicePlans, a_failure_of_any_runtime_call_leaks_nothing) {
  for (const char* const call :
       {"allocate", "allocate_host", "fill", "launch", "multiprocessors", "copy", "create_stream", "create_event"}) {
    SCOPED_TRACE(call);
    const std::string message = std::string("no more ") + call;
    on_ranks(1, by_plans(), [&](Communicator& comm, const OnDevice& on) {
      const DeviceArray bits(on, std::vector<std::int32_t>{6}, DType::kInt32);
      runtime().fail_next(call, Status(StatusCode::kResourceExhausted, message));
      const Status status = comm.all_reduce(bits.buffer(), ReduceOp::kBor, {.stream = on.stream});
      EXPECT_THAT(status.to_string(), HasSubstr(message));
    });
  }
}

}  // namespace
}  // namespace accord
