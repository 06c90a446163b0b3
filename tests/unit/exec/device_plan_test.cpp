// Plans as kernels run them, on threads of the host: bit-identical to the host's kernels.
#include "exec/device/device_plan.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "device/numbers.hpp"
#include "plan/algorithms.hpp"
#include "unit/exec/device_ranks.hpp"

namespace accord::testing {
namespace {

/// Returns elements that are numbers of the dtype, most of them ordinary; every rank has different ones.
Bytes some_elements(std::size_t count, DType dtype, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(count * size_of(dtype));
  if (dtype == DType::kFloat32 || dtype == DType::kFloat64 || kind_of(dtype) == DTypeKind::kComplex) {
    const bool wide = dtype == DType::kFloat64 || dtype == DType::kComplex128;
    const std::size_t each = wide ? 8 : 4;
    for (std::size_t at = 0; at < bytes.size(); at += each) {
      const double value = std::ldexp(static_cast<double>(random()) - 2e9, static_cast<int>(random() % 40) - 50);
      const auto narrow = static_cast<float>(value);
      std::memcpy(&bytes[at], wide ? static_cast<const void*>(&value) : &narrow, each);
    }
  } else {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & (dtype == DType::kBool ? 1U : 0xFFU));
  }
  return bytes;
}

/// How a call's buffers are placed.
struct Placed {
  std::size_t misaligned = 0;  ///< bytes after an aligned address
  bool in_place = false;       ///< the smaller of input and output is a part of the larger one
};

/// The input and output of a rank, in one allocation.
struct CallMemory {
  CallMemory(const OnDevice& on, const exec::RequestRecord& request, int rank, const Bytes& input, const Bytes& output,
             const Placed& placed)
      : input_at(placed.misaligned), output_at(placed.misaligned), output_bytes(output.size()) {
    const plan::CollectiveTraits& traits = plan::traits_of(request.collective);
    const std::size_t own_part = static_cast<std::size_t>(rank) * request.count * size_of(request.dtype);
    if (!placed.in_place && !traits.one_buffer) {
      output_at += (input.size() + 31) / 16 * 16;
    } else if (traits.input.divided && !traits.output.divided) {
      output_at += own_part;
    } else if (traits.output.divided && !traits.input.divided) {
      input_at += own_part;
    }
    Bytes memory(std::max(input_at + input.size(), output_at + output.size()) + 16);
    std::copy(output.begin(), output.end(), memory.begin() + static_cast<std::ptrdiff_t>(output_at));
    std::copy(input.begin(), input.end(), memory.begin() + static_cast<std::ptrdiff_t>(input_at));
    array = std::make_unique<DeviceArray>(on, memory, DType::kUInt8);
  }
  std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(array->buffer().data) + offset; }
  Bytes output() const {
    const Bytes all = array->bytes();
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(output_at);
    return {first, first + static_cast<std::ptrdiff_t>(output_bytes)};
  }

  std::unique_ptr<DeviceArray> array;
  std::size_t input_at = 0, output_at = 0, output_bytes = 0;
};

/// Runs one execution on all ranks. Their memory is a window if the plan needs that.
void expect_result(DeviceRanks& ranks, const plan::AlgorithmEntry& entry, exec::RequestRecord request,
                   const Placed& placed = {}) {
  const std::string label = std::string(entry.name) + " " + exec::to_string(request) + " root " +
                            std::to_string(request.root) + " of " + std::to_string(ranks.size());
  const topology::Topology topology = topology::Topology::uniform(ranks.size());
  const bool in_windows = entry.buffers != plan::Buffers::kAnywhere;
  if (in_windows) request.phase = exec::Phase::kRegistered;
  const bool is_one_buffer = plan::traits_of(request.collective).one_buffer;
  std::vector<Bytes> inputs, befores;
  std::vector<CallMemory> memories;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const Counts counts = counts_of(request, rank, ranks.size());
    const auto seed = static_cast<unsigned>(rank + 100 * static_cast<int>(request.count));
    inputs.push_back(some_elements(counts.input, request.dtype, seed));
    befores.push_back(Bytes(counts.output * size_of(request.dtype), std::byte{0x5A}));
    if (is_one_buffer) std::copy(inputs.back().begin(), inputs.back().end(), befores.back().begin());
    memories.emplace_back(ranks.on(rank), request, rank, inputs.back(), befores.back(), placed);
    ranks.set_window(rank % 3, rank, memories.back().at(0));
  }
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const CallMemory& memory = memories[static_cast<std::size_t>(rank)];
    const plan::Plan plan =
        plan::make_plan(entry, topology, {.collective = request.collective, .root = request.root, .only_rank = rank})
            .value();
    const Status launched = ranks.launch(plan, rank, request,
                                         {.input = memory.at(memory.input_at),
                                          .output = memory.at(memory.output_at),
                                          .input_place = exec::place_word(rank % 3, memory.input_at),
                                          .output_place = exec::place_word(rank % 3, memory.output_at)});
    ASSERT_TRUE(launched.ok()) << label << ": " << launched.to_string();
  }
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_EQ(memories[r].output(), expected_output(request, rank, inputs, befores[r])) << label << " on rank " << rank;
  }
}

bool runs_on_devices(const plan::AlgorithmEntry& entry, const topology::Topology& topology) {
  return entry.collective != Collective::kBarrier &&
         (entry.collective != Collective::kSendRecv || topology.size() == 2) &&
         (entry.fits == nullptr || entry.fits(topology));
}

struct Sizes : ::testing::TestWithParam<int> {};

// 32-bit integers: their sums do not depend on the order, which differs between algorithms.
TEST_P(Sizes, every_algorithm_gives_the_expected_result) {
  DeviceRanks ranks(GetParam(), 2, 256 << 10);
  const topology::Topology topology = topology::Topology::uniform(ranks.size());
  for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
    if (!runs_on_devices(entry, topology)) continue;
    for (const std::size_t count : {std::size_t{0}, std::size_t{3}, std::size_t{1001}, std::size_t{30001}}) {
      const bool rooted = plan::traits_of(entry.collective).rooted;
      for (const Rank root : {Rank{0}, rooted ? ranks.size() - 1 : Rank{0}}) {
        expect_result(ranks, entry,
                      {.collective = entry.collective, .dtype = DType::kInt32, .root = root, .count = count});
        if (root == ranks.size() - 1 || HasFailure()) break;
      }
      if (HasFailure()) return;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Devices, Sizes, ::testing::Values(1, 2, 3, 4, 5));

TEST(DevicePlan, every_op_of_every_dtype_is_bit_identical_to_the_host_kernels) {
  DeviceRanks ranks(3, 2, 256 << 10);
  for (const char* name : {"packet", "two_shot", "two_shot_packet", "one_shot_zero_copy", "two_shot_zero_copy"}) {
    const plan::AlgorithmEntry& entry = *plan::algorithm_by_name(Collective::kAllReduce, name).value();
    for (int dtype = 0; dtype < kDTypeCount; ++dtype)
      for (int op = 0; op < kReduceOpCount; ++op) {
        const auto each = static_cast<DType>(dtype);
        if (!is_defined(static_cast<ReduceOp>(op), each) || static_cast<ReduceOp>(op) == ReduceOp::kPremulSum) continue;
        expect_result(
            ranks, entry,
            {.collective = Collective::kAllReduce, .dtype = each, .op = static_cast<ReduceOp>(op), .count = 1203});
        if (HasFailure()) return;
      }
  }
}

TEST(DevicePlan, canonical_float_sums_are_bit_identical_to_the_host_for_every_algorithm) {
  for (const int size : {4, 7, 8, 9}) {
    DeviceRanks ranks(size, 1, 256 << 10);
    const topology::Topology topology = topology::Topology::uniform(size);
    for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
      if (!runs_on_devices(entry, topology) || entry.order != plan::Order::kCanonical) continue;
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        const exec::RequestRecord request{.collective = entry.collective, .dtype = dtype, .count = 517};
        expect_result(ranks, entry, request);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(DevicePlan, buffers_may_be_unaligned) {
  DeviceRanks ranks(2, 2, 256 << 10);
  for (const char* name :
       {"packet", "one_shot", "two_shot", "two_shot_packet", "one_shot_zero_copy", "two_shot_zero_copy"})
    for (const std::size_t misaligned : {1, 2, 4, 6, 8})
      for (const DType dtype : {DType::kUInt8, DType::kBFloat16, DType::kComplex128}) {
        const exec::RequestRecord request{.collective = Collective::kAllReduce, .dtype = dtype, .count = 333};
        expect_result(ranks, *plan::algorithm_by_name(Collective::kAllReduce, name).value(), request,
                      {.misaligned = misaligned});
        if (HasFailure()) return;
      }
}

TEST(DevicePlan, plans_on_buffers_in_windows_run_in_place) {
  for (const int size : {2, 3, 8}) {
    DeviceRanks ranks(size, 2, 256 << 10);
    for (const plan::AlgorithmEntry& entry : plan::algorithms()) {
      if (entry.buffers != plan::Buffers::kInWindows || entry.collective == Collective::kAllToAll) continue;
      for (const std::size_t count : {1, 517, 20003}) {
        expect_result(ranks, entry, {.collective = entry.collective, .dtype = DType::kInt32, .count = count},
                      {.in_place = true});
        if (HasFailure()) return;
      }
    }
  }
}

// Integers so small that their sums are exact in any order.
TEST(DevicePlan, a_switch_sums_the_dtypes_that_it_supports) {
  DeviceRanks ranks(3, 2, 256 << 10);
  const topology::Topology topology = topology::Topology::uniform(3);
  const auto check = [&]<typename T>(DType dtype, Collective collective, std::size_t count, T (*element)(int),
                                     T (*sum)(int)) {
    const plan::AlgorithmEntry& entry = *plan::algorithm_by_name(collective, "nvls").value();
    const exec::RequestRecord request{.collective = collective, .dtype = dtype, .count = count};
    std::vector<std::unique_ptr<DeviceArray>> inputs, outputs;
    for (int rank = 0; rank < 3; ++rank) {
      const Counts counts = counts_of(request, rank, 3);
      std::vector<T> mine(counts.input);
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = element(static_cast<int>(i % 7) + rank);
      inputs.push_back(std::make_unique<DeviceArray>(ranks.on(rank), mine, dtype));
      outputs.push_back(std::make_unique<DeviceArray>(ranks.on(rank), std::vector<T>(counts.output), dtype));
      const plan::Plan plan = plan::make_plan(entry, topology, {.collective = collective, .only_rank = rank}).value();
      const Status launched =
          ranks.launch(plan, rank, request, inputs.back()->buffer().data, outputs.back()->buffer().data);
      ASSERT_TRUE(launched.ok()) << launched.to_string();
    }
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<T> expected(counts_of(request, rank, 3).output);
      const std::size_t first = collective == Collective::kReduceScatter ? static_cast<std::size_t>(rank) * count : 0;
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = sum(3 * static_cast<int>((first + i) % 7) + 3);
      EXPECT_EQ(outputs[static_cast<std::size_t>(rank)]->values<T>(), expected)
          << to_string(dtype) << " " << to_string(collective) << " " << count;
    }
  };
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter})
    for (const std::size_t count : {std::size_t{1}, std::size_t{1003}, std::size_t{50001}}) {
      const auto same = []<typename T>() { return [](int x) { return static_cast<T>(x); }; };
      const auto of = [&]<typename T>(DType dtype) {
        T (*const number)(int) = same.template operator()<T>();
        check(dtype, collective, count, number, number);
      };
      of.operator()<float>(DType::kFloat32);
      of.operator()<double>(DType::kFloat64);
      of.operator()<std::int32_t>(DType::kInt32);
      of.operator()<std::uint32_t>(DType::kUInt32);
      of.operator()<std::int64_t>(DType::kInt64);
      of.operator()<std::uint64_t>(DType::kUInt64);
      using Number = std::uint16_t (*)(int);
      const Number half = [](int x) { return device::to_float16(static_cast<float>(x)); };
      const Number brain = [](int x) { return device::to_bfloat16(static_cast<float>(x)); };
      check(DType::kFloat16, collective, count, half, half);
      check(DType::kBFloat16, collective, count, brain, brain);
    }
}

TEST(DevicePlan, switch_operands_may_be_unaligned) {
  DeviceRanks ranks(3, 2, 256 << 10);
  for (const Collective collective :
       {Collective::kBroadcast, Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce})
    for (const std::size_t misaligned : {0, 4, 8, 12}) {
      const exec::RequestRecord request{.collective = collective, .dtype = DType::kInt32, .count = 333};
      expect_result(ranks, *plan::algorithm_by_name(collective, "nvls").value(), request, {.misaligned = misaligned});
      if (HasFailure()) return;
    }
}

// Values that one execution leaves in memory must not be taken for the next one's: no stream is waited for in between.
TEST(DevicePlan, executions_run_back_to_back) {
  constexpr int kRanks = 3;
  constexpr std::size_t kCount = 700;
  constexpr int kTimes = 40;
  DeviceRanks ranks(kRanks, 2, 64 << 10);
  const topology::Topology topology = topology::Topology::uniform(kRanks);
  std::vector<std::unique_ptr<DeviceArray>> values;
  for (int rank = 0; rank < kRanks; ++rank)
    values.push_back(
        std::make_unique<DeviceArray>(ranks.on(rank), std::vector<std::int32_t>(kCount, rank), DType::kInt32));
  std::vector<std::int32_t> expected(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) expected[static_cast<std::size_t>(rank)] = rank;
  const auto run = [&](Collective collective, const char* name, Rank root) {
    const plan::AlgorithmEntry& entry = *plan::algorithm_by_name(collective, name).value();
    for (int rank = 0; rank < kRanks; ++rank) {
      const plan::Plan plan =
          plan::make_plan(entry, topology, {.collective = collective, .root = root, .only_rank = rank}).value();
      const exec::RequestRecord request{
          .collective = collective, .dtype = DType::kInt32, .root = root, .count = kCount};
      void* const at = values[static_cast<std::size_t>(rank)]->buffer().data;
      ASSERT_TRUE(ranks.launch(plan, rank, request, at, at).ok());
    }
  };
  for (int i = 0; i < kTimes; ++i) {
    const Rank root = i % kRanks;
    run(Collective::kBroadcast, i % 2 == 0 ? "direct" : "packet", root);
    run(Collective::kAllReduce, i % 3 == 0 ? "two_shot" : i % 3 == 1 ? "packet" : "one_shot", 0);
    expected.assign(kRanks, static_cast<std::int32_t>(
                                kRanks * static_cast<std::uint32_t>(expected[static_cast<std::size_t>(root)])));
  }
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(values[static_cast<std::size_t>(rank)]->values<std::int32_t>(),
              std::vector<std::int32_t>(kCount, expected[0]));
}

// Each of two lanes puts its half where the other one reads it, after a barrier of the rank's lanes.
TEST(DevicePlan, lanes_are_blocks_that_meet_at_barriers) {
  constexpr int kRanks = 2;
  DeviceRanks ranks(kRanks, 4, 64 << 10);  // two instances of two lanes
  plan::PlanBuilder builder("lanes", {.collective = Collective::kAllToAll}, kRanks,
                            {.input_chunks = 2, .output_chunks = 2, .scratch_chunks = 2});
  for (const Rank rank : builder.ranks()) {
    const Rank peer = 1 - rank;
    auto lane = [&](int index) -> plan::PlanBuilder::OnRank {
      auto on = builder.on(rank);
      on.lane(index);
      return on;
    };
    for (const int index : {0, 1}) {
      lane(index).copy(plan::input(rank, index), {plan::scratch(rank, index)}).lane_barrier(0);
      if (index == 0) lane(index).signal(peer);
      if (index == 0) lane(index).wait(peer);
      lane(index).lane_barrier(1);
      // Lane 0 reads the data that lane 1 has stored, and vice versa.
      const Rank from = index == 0 ? peer : rank;
      lane(index).copy(plan::scratch(from, rank), {plan::output(rank, from)});
    }
  }
  const plan::Plan plan = std::move(builder).build().value();
  for (int time = 0; time < 3; ++time) {
    std::vector<std::unique_ptr<DeviceArray>> inputs, outputs;
    const exec::RequestRecord request{.collective = Collective::kAllToAll, .dtype = DType::kInt32, .count = 5000};
    for (int rank = 0; rank < kRanks; ++rank) {
      std::vector<std::int32_t> mine(10000);
      for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<std::int32_t>(i) + 100000 * rank + time;
      inputs.push_back(std::make_unique<DeviceArray>(ranks.on(rank), mine, DType::kInt32));
      outputs.push_back(std::make_unique<DeviceArray>(ranks.on(rank), std::vector<std::int32_t>(10000), DType::kInt32));
      ASSERT_TRUE(ranks.launch(plan, rank, request, inputs.back()->buffer().data, outputs.back()->buffer().data).ok());
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto found = outputs[static_cast<std::size_t>(rank)]->values<std::int32_t>();
      for (const std::size_t i : {0, 4999, 5000, 9999}) {
        const auto from = static_cast<int>(i / 5000);
        EXPECT_EQ(found[i], static_cast<std::int32_t>(5000 * rank + static_cast<int>(i % 5000)) + 100000 * from + time);
      }
    }
  }
}

}  // namespace
}  // namespace accord::testing
