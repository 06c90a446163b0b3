// When plans on devices end early, how many blocks they use, and which ones devices do not support.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "exec/device/device_plan.hpp"
#include "plan/algorithms.hpp"
#include "plan/builder.hpp"
#include "plan/verifier.hpp"
#include "unit/exec/device_ranks.hpp"

namespace accord::testing {
namespace {

using ::testing::HasSubstr;

// The sums of the last two read the missing peer's input, whose address rank 0 never learns.
TEST(DevicePlanLimits, a_wait_for_a_missing_peer_ends_on_request) {
  for (const char* name : {"packet", "two_shot", "two_shot_packet", "one_shot_zero_copy", "two_shot_zero_copy"}) {
    DeviceRanks ranks(2, 1, 64 << 10);
    const plan::Plan plan = plan::make_plan(*plan::algorithm_by_name(Collective::kAllReduce, name).value(),
                                            topology::Topology::uniform(2), {.collective = Collective::kAllReduce})
                                .value();
    const DeviceArray values(ranks.on(0), std::vector<float>(200, 1.0F), DType::kFloat32);
    std::byte* const at = static_cast<std::byte*>(values.buffer().data);
    exec::RequestRecord request{.collective = Collective::kAllReduce, .count = 100};
    if (plan.buffers != plan::Buffers::kAnywhere) request.phase = exec::Phase::kRegistered;
    ranks.set_window(0, 0, at);
    const exec::DeviceBuffers buffers{.input = at,
                                      .output = at + 400,
                                      .input_place = exec::place_word(0, 0),
                                      .output_place = exec::place_word(0, 400)};
    ASSERT_TRUE(ranks.launch(plan, 0, request, buffers).ok());
    const device::Event end = ranks.runtime().create_event(ranks.on(0).device).value();
    ASSERT_TRUE(ranks.runtime().record(end, ranks.on(0).device, ranks.on(0).stream).ok());
    EXPECT_FALSE(ranks.runtime().has_happened(end).value());
    ranks.end_waits();
    ranks.on(0).synchronize();
  }
}

// Rank 0 sums one part for all ranks, which the others read from it. If it has not summed the part, it must not
// signal that the part is there.
TEST(DevicePlanLimits, an_aborted_kernel_never_signals_that_its_data_is_ready) {
  constexpr std::size_t kCount = 30;
  DeviceRanks ranks(3, 1, 64 << 10);
  const plan::Plan plan = plan::make_plan(*plan::algorithm_by_name(Collective::kAllReduce, "two_shot").value(),
                                          topology::Topology::uniform(3), {.collective = Collective::kAllReduce})
                              .value();
  std::vector<std::unique_ptr<DeviceArray>> inputs, outputs;
  for (int rank = 0; rank < 3; ++rank) {
    inputs.push_back(std::make_unique<DeviceArray>(ranks.on(rank), std::vector<float>(kCount, 1.0F), DType::kFloat32));
    outputs.push_back(std::make_unique<DeviceArray>(ranks.on(rank), std::vector<float>(kCount, 7.0F), DType::kFloat32));
  }
  const auto launch = [&](int rank) {
    ASSERT_TRUE(ranks
                    .launch(plan, rank, {.collective = Collective::kAllReduce, .count = kCount},
                            inputs[static_cast<std::size_t>(rank)]->buffer().data,
                            outputs[static_cast<std::size_t>(rank)]->buffer().data)
                    .ok());
  };
  launch(0);
  ranks.end_waits(0);
  ranks.on(0).synchronize();
  launch(1);
  launch(2);
  // They sum their own parts, signal each other, and wait for rank 0's part: between the two, both signals have
  // arrived.
  const exec::DeviceLayout& layout = ranks.layout();
  for (const int rank : {1, 2}) {
    const auto count_signals = [&] {
      int count = 0;
      for (int id = 0; id < layout.signals(); ++id) {
        std::byte* const flag = ranks.memory(rank) + layout.region(0) + layout.lines(1) + layout.flag(3 - rank, id);
        count += std::atomic_ref(*reinterpret_cast<std::uint64_t*>(flag)).load() == 1 ? 1 : 0;
      }
      return count;
    };
    while (count_signals() < 2) std::this_thread::yield();
  }
  ranks.end_waits();
  for (const std::size_t rank : {1, 2}) {
    const std::vector<float> found = outputs[rank]->values<float>();
    const auto part = [&](std::size_t of) {
      const auto first = found.begin() + static_cast<std::ptrdiff_t>(of * kCount / 3);
      return std::vector<float>(first, first + kCount / 3);
    };
    EXPECT_EQ(part(0), std::vector<float>(kCount / 3, 7.0F)) << "nothing of rank 0";
    EXPECT_EQ(part(rank), std::vector<float>(kCount / 3, 3.0F));
  }
}

// Rank 0 has given its data to rank 1 and waits for rank 2 when its waits end. Two more calls are in its stream, of
// which the second one uses the same scratch again.
TEST(DevicePlanLimits, kernels_behind_an_aborted_one_leave_the_memory_of_its_round_alone) {
  constexpr std::size_t kCount = 30;
  DeviceRanks ranks(3, 1, 64 << 10);
  const plan::Plan plan = plan::make_plan(*plan::algorithm_by_name(Collective::kAllReduce, "one_shot").value(),
                                          topology::Topology::uniform(3), {.collective = Collective::kAllReduce})
                              .value();
  std::vector<std::unique_ptr<DeviceArray>> inputs, outputs;
  const auto launch = [&](int rank, float value) {
    inputs.push_back(std::make_unique<DeviceArray>(ranks.on(rank), std::vector<float>(kCount, value), DType::kFloat32));
    outputs.push_back(std::make_unique<DeviceArray>(ranks.on(rank), std::vector<float>(kCount, 7.0F), DType::kFloat32));
    ASSERT_TRUE(ranks
                    .launch(plan, rank, {.collective = Collective::kAllReduce, .count = kCount},
                            inputs.back()->buffer().data, outputs.back()->buffer().data)
                    .ok());
  };
  launch(0, 1.0F);
  ranks.end_waits(0);
  ranks.on(0).synchronize();
  launch(0, 100.0F);
  launch(0, 200.0F);
  for (const std::unique_ptr<DeviceArray>& output : outputs)
    EXPECT_EQ(output->values<float>(), std::vector<float>(kCount, 7.0F));
  launch(1, 1.0F);
  launch(2, 1.0F);
  EXPECT_EQ(outputs[3]->values<float>(), std::vector<float>(kCount, 3.0F));
  EXPECT_EQ(outputs[4]->values<float>(), std::vector<float>(kCount, 3.0F));
}

TEST(DevicePlanLimits, large_calls_use_more_blocks) {
  const auto blocks_for = [](Collective collective, const char* name, std::size_t count, int instances) {
    const plan::Plan plan = plan::make_plan(*plan::algorithm_by_name(collective, name).value(),
                                            topology::Topology::uniform(4), {.collective = collective})
                                .value();
    const exec::RequestRecord request{.collective = collective, .dtype = DType::kFloat32, .count = count};
    return exec::lower_for_device(plan, 0, exec::device_layout(4, instances, 1 << 20), request,
                                  {DType::kFloat32, plan::bounds_of(plan, count, 4)})
        .value()
        .instances;
  };
  constexpr std::size_t kMiB = std::size_t{1} << 18;  // of float32
  EXPECT_EQ(blocks_for(Collective::kAllReduce, "two_shot", kMiB, 32), 16);
  EXPECT_EQ(blocks_for(Collective::kAllReduce, "two_shot", kMiB + 4, 32), 32);
  EXPECT_EQ(blocks_for(Collective::kAllReduce, "two_shot", 16 * kMiB, 16), 16) << "no more than there are";
  EXPECT_EQ(blocks_for(Collective::kAllReduce, "packet", 100, 32), 1);
  EXPECT_EQ(blocks_for(Collective::kAllGather, "direct", kMiB / 4, 32), 16) << "of each rank";
  EXPECT_EQ(blocks_for(Collective::kAllGather, "direct", kMiB, 32), 32);
}

// Rank 1 has fewer lanes than rank 0; both need the same instances.
TEST(DevicePlanLimits, the_blocks_of_all_lanes_are_limited) {
  const auto lower_with = [](int lanes, int rank, std::size_t count, int instances) {
    plan::PlanBuilder builder("many_lanes", {.collective = Collective::kBroadcast}, 2,
                              {.input_chunks = lanes, .output_chunks = lanes, .scratch_chunks = lanes});
    for (int lane = 0; lane < lanes; ++lane) {
      builder.on(0)
          .lane(lane)
          .copy(plan::input(0, lane), {plan::scratch(0, lane), plan::output(0, lane)})
          .signal(1, lane);
      builder.on(1).wait(0, lane).copy(plan::scratch(0, lane), {plan::output(1, lane)});
    }
    const plan::Plan plan = std::move(builder).build().value();
    const exec::RequestRecord request{.collective = Collective::kBroadcast, .dtype = DType::kFloat32, .count = count};
    return exec::lower_for_device(plan, rank, exec::device_layout(2, instances, 1 << 20), request,
                                  {DType::kFloat32, plan::bounds_of(plan, count, 4)})
        .value();
  };
  constexpr std::size_t kSmall = 200'000, kLarge = 4'000'000;
  for (const int rank : {0, 1}) {
    EXPECT_EQ(lower_with(8, rank, kSmall, 32).instances, 2) << "16 blocks";
    EXPECT_EQ(lower_with(8, rank, kLarge, 32).instances, 4) << "32 blocks";
    EXPECT_EQ(lower_with(3, rank, kLarge, 4).instances, 1) << "3 blocks";
    EXPECT_EQ(lower_with(8, rank, kSmall, 4).instances, 1) << "never less than one";
  }
  EXPECT_EQ(lower_with(8, 0, kSmall, 32).program.lanes, 8);
}

TEST(DevicePlanLimits, plans_that_devices_do_not_support_are_rejected) {
  const auto refused = [](int size, const char* name, ReduceOp op) {
    const plan::AlgorithmEntry& entry = *plan::algorithm_by_name(Collective::kAllReduce, name).value();
    const plan::Plan plan =
        plan::make_plan(entry, topology::Topology::uniform(size), {.collective = Collective::kAllReduce}).value();
    const exec::RequestRecord request{.collective = Collective::kAllReduce, .op = op, .count = 10};
    const Result<exec::DevicePlan> lowered = exec::lower_for_device(
        plan, 0, exec::device_layout(size, 1, 1 << 20), request, {DType::kFloat32, plan::bounds_of(plan, 10, 4)});
    EXPECT_EQ(lowered.status().code(), StatusCode::kUnsupported);
    return lowered.status().message();
  };
  EXPECT_THAT(refused(2, "two_shot_zero_copy", ReduceOp::kSum),
              HasSubstr("\"two_shot_zero_copy\" on a device: it needs the buffers of all ranks to be in windows"));
  EXPECT_THAT(refused(2, "packet", ReduceOp::kPremulSum), HasSubstr("do not support factors"));
  EXPECT_THAT(refused(64, "two_shot", ReduceOp::kSum), HasSubstr("and a kernel accepts 3584"));
}

/// Each rank copies the first half of its input to the peer's scratch, and puts the second half into packets.
plan::Plan scratch_and_packets(bool signals) {
  plan::PlanBuilder builder("mixed", {.collective = Collective::kAllGather}, 2,
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
  return std::move(builder).build().value();
}

TEST(DevicePlanLimits, packets_on_devices_order_no_other_memory) {
  for (const bool signals : {true, false}) {
    const plan::Plan plan = scratch_and_packets(signals);
    const Status verified = plan::verify_for_calls(plan);
    ASSERT_TRUE(verified.ok()) << verified.to_string();
    const Status status = exec::check_for_device(plan);
    EXPECT_EQ(status.code(), signals ? StatusCode::kOk : StatusCode::kUnsupported) << status.to_string();
    if (signals) continue;
    EXPECT_THAT(status.message(), HasSubstr("packets on devices order no other memory: plan \"mixed\" (all_gather, 2 "
                                            "ranks), rank 1, lane 0, step 5"));
    EXPECT_THAT(status.message(), HasSubstr("for scratch[0] of rank 1: no signal or barrier orders the two"));
  }
}

// Lane 0 tells lane 1 through the peer that it has written the output, which lane 1 reads.
TEST(DevicePlanLimits, packets_on_devices_order_no_lanes) {
  for (const bool signals : {true, false}) {
    plan::PlanBuilder builder("lanes", {.collective = Collective::kAllGather}, 2,
                              {.input_chunks = 1, .output_chunks = 2, .packet_chunks = 4});
    for (const Rank rank : builder.ranks()) {
      const Rank peer = 1 - rank;
      auto first = builder.on(rank), second = builder.on(rank);
      first.copy(plan::input(rank, 0), {plan::output(rank, rank)});
      first.put_packets(plan::input(rank, 0), plan::packets(peer, rank));
      if (signals) first.signal(rank);
      first.copy(plan::packets(rank, peer), {plan::output(rank, peer)});
      first.put_packets(plan::output(rank, peer), plan::packets(peer, 2 + rank));
      second.lane(1);
      if (signals) second.wait(rank);
      second.copy(plan::packets(rank, 2 + peer), {plan::output(rank, rank)});
    }
    const plan::Plan plan = std::move(builder).build().value();
    const Status verified = plan::verify_for_calls(plan);
    ASSERT_TRUE(verified.ok()) << verified.to_string();
    const Status status = exec::check_for_device(plan);
    EXPECT_EQ(status.code(), signals ? StatusCode::kOk : StatusCode::kUnsupported) << status.to_string();
  }
}

TEST(DevicePlanLimits, every_built_in_plan_orders_memory_without_packets) {
  for (const int size : {1, 2, 3, 4, 8, 9}) {
    const topology::Topology topology = topology::Topology::uniform(size);
    for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
      if (entry.collective == Collective::kSendRecv && size != 2) continue;
      if (entry.fits != nullptr && !entry.fits(topology)) continue;
      const plan::Plan plan = plan::make_plan(entry, topology, {.collective = entry.collective}).value();
      const Status status = exec::check_for_device(plan);
      EXPECT_TRUE(status.ok()) << status.to_string();
      EXPECT_FALSE(plan::mixes_packets(plan)) << entry.name << " has a gate of its own";
    }
  }
}

TEST(DevicePlanLimits, sums_that_a_switch_does_not_support_are_rejected) {
  const auto why = [](DType dtype, ReduceOp op, bool has_multicast) {
    exec::DeviceLayout layout = exec::device_layout(2, 1, 256 << 10);
    layout.has_multicast = has_multicast;
    const plan::Plan plan = plan::make_plan(*plan::algorithm_by_name(Collective::kAllReduce, "nvls").value(),
                                            topology::Topology::uniform(2), {.collective = Collective::kAllReduce})
                                .value();
    const exec::RequestRecord request{.collective = Collective::kAllReduce, .dtype = dtype, .op = op, .count = 10};
    const Status status =
        exec::lower_for_device(plan, 0, layout, request, {dtype, plan::bounds_of(plan, 10, size_of(dtype))}).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    return status.message();
  };
  EXPECT_THAT(why(DType::kFloat32, ReduceOp::kMax, true),
              HasSubstr("plan \"nvls\" on a device: a switch does not support max of float32"));
  EXPECT_THAT(why(DType::kInt8, ReduceOp::kSum, true), HasSubstr("a switch does not support sum of int8"));
  EXPECT_THAT(why(DType::kFloat32, ReduceOp::kAvg, true), HasSubstr("a switch does not support avg of float32"));
  EXPECT_THAT(why(DType::kFloat32, ReduceOp::kSum, false), HasSubstr("needs multicast, which only GPUs have"));
}

}  // namespace
}  // namespace accord::testing
