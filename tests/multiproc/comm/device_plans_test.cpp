// Plans as kernels between processes: they find each other's memory by handles and compute the same as the plain
// computation.
#include <numeric>

#include "conformance/comm/reference.hpp"
#include "multiproc/comm/device_processes.hpp"

namespace accord {
namespace {

using testing::DeviceArray;
using testing::OnDevice;
using Bytes = std::vector<std::byte>;

class DevicePlanProcesses : public testing::DeviceProcesses {};

/// Packets for all sizes that fit into packets.
const char* const kByPackets =
    "broadcast[memory=cuda]:0-64k=packet,64k-inf=direct;all_gather[memory=cuda]:0-64k=packet,64k-inf=direct;"
    "reduce_scatter[memory=cuda]:0-64k=packet,64k-inf=direct;all_reduce[memory=cuda]:0-64k=packet,64k-inf=two_shot;"
    "all_to_all[memory=cuda]:0-64k=packet,64k-inf=direct";

float rounded(float value, DType dtype) {
  return dtype == DType::kFloat32 ? value : testing::from_bfloat16(testing::to_bfloat16(value));
}

/// Returns the values of a rank at positions `first` to `first + count`.
std::vector<float> samples(Rank rank, std::size_t count, DType dtype, std::size_t first = 0) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = rounded(testing::sample(rank, first + i), dtype);
  return values;
}

/// Returns the sums of all ranks at those positions, in the canonical order and rounded once.
std::vector<float> sums(int size, std::size_t count, DType dtype, std::size_t first = 0) {
  std::vector<float> values(count), column(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < count; ++i) {
    for (Rank rank = 0; rank < size; ++rank)
      column[static_cast<std::size_t>(rank)] = rounded(testing::sample(rank, first + i), dtype);
    values[i] = testing::tree_sum(column, 0, column.size());
  }
  return values;
}

Bytes encoded(const std::vector<float>& values, DType dtype) {
  Bytes bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint16_t half = testing::to_bfloat16(values[i]);
    if (dtype == DType::kFloat32) std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    if (dtype == DType::kBFloat16) std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

void append(std::vector<float>& to, const std::vector<float>& more) { to.insert(to.end(), more.begin(), more.end()); }

/// Runs one rank's part of each collective. The larger buffer has `count` elements, or slightly fewer so that it can
/// be divided.
void check_collectives(Communicator& comm, const OnDevice& on, std::size_t count, DType dtype) {
  const Rank me = comm.rank();
  const int size = comm.size();
  const std::size_t part = std::max<std::size_t>(1, count / static_cast<std::size_t>(size));
  const std::size_t all = part * static_cast<std::size_t>(size), begin = part * static_cast<std::size_t>(me);
  const CallOptions options{.stream = on.stream};
  const auto expect = [&](const char* label, const Status& status, const DeviceArray& found,
                          const std::vector<float>& expected) {
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(found.bytes() == encoded(expected, dtype)) << label << " of " << count << " x " << to_string(dtype);
  };
  const DeviceArray mine(on, encoded(samples(me, all, dtype), dtype), dtype),
      whole(on, Bytes(all * size_of(dtype)), dtype), own(on, Bytes(part * size_of(dtype)), dtype);

  Status status = comm.reduce_scatter(mine.buffer(), own.buffer(), ReduceOp::kSum, options);
  expect("reduce_scatter", status, own, sums(size, part, dtype, begin));
  status = comm.all_to_all(mine.buffer(), whole.buffer(), options);
  std::vector<float> gathered, exchanged;
  for (Rank rank = 0; rank < size; ++rank) {
    append(gathered, samples(rank, part, dtype));
    append(exchanged, samples(rank, part, dtype, begin));
  }
  expect("all_to_all", status, whole, exchanged);
  status = comm.all_gather(mine.part(0, part), whole.buffer(), options);
  expect("all_gather", status, whole, gathered);

  const DeviceArray values(on, encoded(samples(me, count, dtype), dtype), dtype);
  const auto root = static_cast<Rank>(count % static_cast<std::size_t>(size));
  status = comm.all_reduce(values.buffer(), ReduceOp::kSum, options);
  expect("all_reduce", status, values, sums(size, count, dtype));
  values.put(encoded(samples(me, count, dtype), dtype));
  status = comm.broadcast(values.buffer(), root, options);
  expect("broadcast", status, values, samples(root, count, dtype));
}

TEST_F(DevicePlanProcesses, collectives_match_a_plain_computation) {
  for (const int size : {2, 3, 4}) {
    on_ranks(size, by_plans(), [](Communicator& comm, const OnDevice& on) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
        for (const std::size_t bytes : {8, 8 << 10, 1 << 20})
          check_collectives(comm, on, bytes / size_of(dtype), dtype);
    });
  }
}

TEST_F(DevicePlanProcesses, odd_counts_and_large_packets) {
  CommunicatorOptions options = by_plans();
  const std::string in_two_shots = std::string(kByPackets) + ";all_reduce[memory=cuda]:0-inf=two_shot_packet";
  for (const std::string& select : {std::string(testing::kByPlans), std::string(kByPackets), in_two_shots}) {
    options.select = select;
    on_ranks(3, options, [](Communicator& comm, const OnDevice& on) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
        for (const std::size_t count : {1, 7, 1003, 4099}) check_collectives(comm, on, count, dtype);
    });
  }
}

/// Sums integers, which are exact in the order of any switch. The switch's memory is passed between processes.
TEST_F(DevicePlanProcesses, sums_go_through_a_switch) {
  CommunicatorOptions options = by_plans();
  options.select = "all_reduce[memory=cuda]:0-inf=nvls";
  on_ranks(3, options, [](Communicator& comm, const OnDevice&) {
    const Device device{DeviceType::kCuda, static_cast<std::int16_t>(comm.rank())};  // its own device
    const OnDevice on{runtime(), device, runtime().create_stream(device, false).value()};
    for (const std::size_t count : {std::size_t{1}, std::size_t{30000}}) {
      std::vector<std::int32_t> expected(count), mine(count);
      for (std::size_t i = 0; i < count; ++i) {
        mine[i] = static_cast<std::int32_t>(i) + comm.rank();
        expected[i] = 3 * static_cast<std::int32_t>(i) + 3;
      }
      const DeviceArray values(on, mine, DType::kInt32);
      const Status status = comm.all_reduce(values.buffer(), ReduceOp::kSum, {.stream = on.stream});
      EXPECT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(values.values<std::int32_t>(), expected);
    }
    EXPECT_EQ(runtime().live().multicasts, 1U);
    EXPECT_TRUE(runtime().destroy_stream(device, on.stream).ok());
  });
}

/// No rank waits between the calls, which use packets and scratch memory in turn, so that their rounds follow each
/// other.
TEST_F(DevicePlanProcesses, consecutive_calls_each_give_their_own_result) {
  constexpr std::size_t kCalls = 40;
  on_ranks(3, by_plans(), [](Communicator& comm, const OnDevice& on) {
    std::vector<std::unique_ptr<DeviceArray>> arrays;
    const auto count_of = [](std::size_t call) { return call % 3 == 0 ? std::size_t{3000} : 1 + call; };
    for (std::size_t call = 0; call < kCalls; ++call)
      arrays.push_back(std::make_unique<DeviceArray>(on, samples(comm.rank(), count_of(call), DType::kFloat32, call),
                                                     DType::kFloat32));
    for (const auto& array : arrays)
      EXPECT_TRUE(comm.all_reduce(array->buffer(), ReduceOp::kSum, {.stream = on.stream}).ok());
    for (std::size_t call = 0; call < kCalls; ++call)
      EXPECT_EQ(arrays[call]->values<float>(), sums(3, count_of(call), DType::kFloat32, call)) << "call " << call;
  });
}

TEST_F(DevicePlanProcesses, concurrent_groups_do_not_interfere) {
  on_ranks(4, by_plans(), [](Communicator& comm, const OnDevice& on) {
    std::optional<Communicator> half = comm.split(comm.rank() % 2, comm.rank(), "half").value();
    const Stream other = runtime().create_stream(on.device, false).value();
    {
      const OnDevice beside{runtime(), on.device, other};
      const DeviceArray all(on, std::vector<float>(3000, 1.0F), DType::kFloat32);
      const DeviceArray part(beside, std::vector<float>(64, 1.0F), DType::kFloat32);
      for (int i = 0; i < 5; ++i) {
        EXPECT_TRUE(half->all_reduce(part.buffer(), ReduceOp::kSum, {.stream = other}).ok());
        EXPECT_TRUE(comm.all_reduce(all.buffer(), ReduceOp::kSum, {.stream = on.stream}).ok());
      }
      EXPECT_EQ(part.values<float>(), std::vector<float>(64, 32.0F));
      EXPECT_EQ(all.values<float>(), std::vector<float>(3000, 1024.0F));
    }
    half.reset();
    EXPECT_TRUE(runtime().destroy_stream(on.device, other).ok());
  });
}

}  // namespace
}  // namespace accord
