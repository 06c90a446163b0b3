// Sums over the ranks that travel in 8-bit codes, on devices: the kernels compared with the CPU's, and engines with
// engines on the CPU.
#include <cmath>
#include <limits>
#include <mutex>

#include "engine/gpu/kernels/code_kernels.hpp"
#include "unit/engine/gpu/blocks.hpp"
#include "unit/engine/gpu/graphs.hpp"
#include "unit/engine/gpu/models.hpp"

namespace accord::engine {
namespace {

using accord::testing::BlockSize;
using accord::testing::DeviceArray;
using accord::testing::floats_of;
using accord::testing::HostRuntime;
using accord::testing::HostTensor;
using accord::testing::kGpu;
using accord::testing::run_blocks;
using accord::testing::some_numbers;
using kernels::kCodeGroup;
using kernels::kCodeGroupBytes;

constexpr BlockSize kBlockSizes[] = {{1, 1}, {6, 2}, {32, 8}};

/// Room for `groups` groups, and a guard word behind them, aligned like memory of a device.
std::vector<std::uint32_t> room_for(std::int64_t groups) {
  return std::vector<std::uint32_t>(static_cast<std::size_t>(groups * kCodeGroupBytes / 4 + 1), 0xA5A5A5A5U);
}
std::byte* bytes_of(std::vector<std::uint32_t>& room) { return reinterpret_cast<std::byte*>(room.data()); }

TEST(DeviceCodes, kernels_encode_and_decode_bit_identically_to_the_cpu) {
  for (const BlockSize& size : kBlockSizes) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const std::int64_t count : {1, 63, 64, 65, 1000}) {
        const std::int64_t filled = (count + kCodeGroup - 1) / kCodeGroup, groups = filled + 2;
        std::vector<float> numbers = some_numbers(static_cast<std::size_t>(count));
        for (std::size_t i = 0; i < 64 && i < numbers.size(); ++i) numbers[i] *= count > 500 ? 0.0F : 1e-3F;
        HostTensor x(dtype, {count}, numbers);
        std::vector<std::uint32_t> expected = room_for(groups), codes = room_for(groups);
        std::fill(expected.begin(), expected.end() - 1, 0);  // codes after the last element are zeros
        kernels::encode_groups(x.view().buffer.data, dtype, count, bytes_of(expected));
        run_blocks(EncodeGroups{x.view().buffer.data, dtype, count, groups, bytes_of(codes)}, 3, size, 0);
        ASSERT_EQ(codes, expected) << count << " of " << to_string(dtype);
        HostTensor y(dtype, {count}, numbers), same(dtype, {count}, numbers);
        kernels::decode_groups(bytes_of(expected), count, same.view().buffer.data, dtype);
        run_blocks(DecodeGroups{bytes_of(codes), count, y.view().buffer.data, dtype}, 3, size, 0);
        ASSERT_EQ(floats_of(y.view()), floats_of(same.view())) << count << " of " << to_string(dtype);
      }
    }
  }
}

/// Three parts in codes, and the limits for their sum.
struct CodedParts {
  static constexpr std::int64_t kGroups = 5, kParts = 3, kCount = kGroups * kCodeGroup;
  std::vector<std::uint32_t> parts = room_for(kGroups * kParts);
  std::vector<float> coded = some_numbers(kParts * kCount);

  CodedParts() {
    kernels::encode_groups(coded.data(), DType::kFloat32, kParts * kCount, bytes_of(parts));
    kernels::decode_groups(bytes_of(parts), kParts * kCount, coded.data(), DType::kFloat32);
  }
  static AddGroups adding(const std::byte* parts, std::byte* codes) {
    return {parts, kParts, kGroups * kCodeGroupBytes, kGroups, codes};
  }
  double exact(std::int64_t i) const {
    double sum = 0.0;
    for (std::int64_t part = 0; part < kParts; ++part) sum += coded[static_cast<std::size_t>(part * kCount + i)];
    return sum;
  }
  // Where the CPU fuses a product and a sum into one rounding, its last bits differ.
  void expect_within_half_a_scale(std::vector<std::uint32_t> codes) const {
    EXPECT_EQ(codes.back(), 0xA5A5A5A5U);
    std::vector<float> sums(kCount);
    kernels::decode_groups(bytes_of(codes), kCount, sums.data(), DType::kFloat32);
    for (std::int64_t i = 0; i < kCount; ++i) {
      double most = 0.0;
      for (std::int64_t j = i / kCodeGroup * kCodeGroup; j < (i / kCodeGroup + 1) * kCodeGroup; ++j)
        most = std::max(most, std::fabs(exact(j)));
      ASSERT_NEAR(sums[static_cast<std::size_t>(i)], exact(i), 0.50001 * most / 127.0) << i;
    }
  }
};

TEST(DeviceCodes, kernels_sum_parts_within_half_a_scale) {
  CodedParts of;
  for (const BlockSize& size : kBlockSizes) {
    std::vector<std::uint32_t> codes = room_for(of.kGroups);
    run_blocks(of.adding(bytes_of(of.parts), bytes_of(codes)), 2, size, 0);
    of.expect_within_half_a_scale(codes);
  }
}

class DeviceCodeKernels : public accord::testing::OnAnyDevice<> {
 protected:
  template <typename K>
  static void launch(const K& kernel) {
    const Status status = device::launch(runtime(), kernel, {.blocks = 2, .threads = 96}, kGpu, {});
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  static std::byte* bytes_on(const DeviceArray& array) { return static_cast<std::byte*>(array.buffer().data); }
};

TEST_P(DeviceCodeKernels, are_launched_and_match_the_cpu_bit_for_bit_and_sums_within_half_a_scale) {
  const accord::testing::OnDevice on{runtime(), kGpu};
  constexpr std::int64_t kCount = 999, kFilled = (kCount + kCodeGroup - 1) / kCodeGroup;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(to_string(dtype));
    HostTensor x(dtype, {kCount}, some_numbers(kCount)), same(dtype, {kCount}, some_numbers(kCount, 2));
    std::vector<std::uint32_t> expected = room_for(kFilled);
    kernels::encode_groups(x.view().buffer.data, dtype, kCount, bytes_of(expected));
    kernels::decode_groups(bytes_of(expected), kCount, same.view().buffer.data, dtype);
    const auto* const first = static_cast<const std::byte*>(x.view().buffer.data);
    const std::vector<std::byte> stored(first, first + x.view().buffer.bytes());
    const DeviceArray on_x(on, stored, dtype), codes(on, room_for(kFilled), DType::kInt32), y(on, stored, dtype);
    launch(EncodeGroups{bytes_on(on_x), dtype, kCount, kFilled, bytes_on(codes)});
    EXPECT_EQ(codes.values<std::uint32_t>(), expected);
    launch(DecodeGroups{bytes_on(codes), kCount, bytes_on(y), dtype});
    EXPECT_EQ(floats_of({y.buffer(), {kCount}}), floats_of(same.view()));
  }
  const CodedParts of;
  const DeviceArray parts(on, of.parts, DType::kInt32), codes(on, room_for(of.kGroups), DType::kInt32);
  launch(of.adding(bytes_on(parts), bytes_on(codes)));
  of.expect_within_half_a_scale(codes.values<std::uint32_t>());
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceCodeKernels, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceCodeKernels, accord::testing::kGpus);

TEST(DeviceCodes, a_group_that_is_not_finite_becomes_nan_and_others_are_unaffected) {
  for (const float not_finite : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(2 * kCodeGroup, 1.0F), y(x.size());
    x[5] = not_finite;
    std::vector<std::uint32_t> codes = room_for(2);
    run_blocks(EncodeGroups{x.data(), DType::kFloat32, 2 * kCodeGroup, 2, bytes_of(codes)}, 1, {4, 2}, 0);
    run_blocks(DecodeGroups{bytes_of(codes), 2 * kCodeGroup, y.data(), DType::kFloat32}, 1, {4, 2}, 0);
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(std::isnan(y[i]), i < kCodeGroup) << i;
    EXPECT_FLOAT_EQ(y.back(), 1.0F);
  }
}

/// Returns the contribution of `rank` to a sum.
std::vector<float> numbers_of(Rank rank, std::int64_t count) {
  return some_numbers(static_cast<std::size_t>(count), 17 + static_cast<unsigned>(rank));
}

/// Returns the first output of three runs (direct, captured, as a graph) of all ranks, which must all be equal.
std::vector<float> output_of_ranks(const EngineParts& parts, int size, const Shapes& shape, DType dtype, bool on_gpu) {
  std::mutex mutex;
  std::vector<std::vector<float>> made;
  accord::testing::run_thread_ranks(size, {.timeout = std::chrono::seconds(60)}, [&](const Communicator& comm) {
    const Device device = on_gpu ? Device{DeviceType::kCuda, static_cast<std::int16_t>(comm.rank())} : Device();
    Result<Engine> engine =
        Engine::assemble(parts, {{"tp", {comm.rank(), size}}}, {.device = device, .all_reduce_dtype = DType::kInt8});
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    const Status bound = engine->bind({{"tp", comm}});
    ASSERT_TRUE(bound.ok()) << bound.to_string();
    Result<EngineContext> context = engine->create_context();
    std::vector<HostTensor> inputs;
    inputs.emplace_back(dtype, shape, numbers_of(comm.rank(), static_cast<std::int64_t>(count_of(shape))));
    for (int run = 0; run < 3; ++run) {
      const Result<std::vector<TensorView>> outputs = context->run(views_of(inputs));
      ASSERT_TRUE(outputs.ok()) << outputs.status().to_string();
      const std::lock_guard lock(mutex);
      made.push_back(floats_of((*outputs)[0]));
    }
  });
  EXPECT_EQ(made.size(), static_cast<std::size_t>(3 * size));
  for (const std::vector<float>& each : made) EXPECT_EQ(each, made.front());
  return made.empty() ? std::vector<float>() : made.front();
}

Arguments sum_of(ValueId x) {
  return {{"input", of(x)}, {"reduce_op", std::string("sum")}, {"group_name", std::string("tp")}};
}

// 33 KB, which fill neither whole groups nor whole pieces. A code may be the neighboring one where the CPU rounds
// differently.
TEST_F(DeviceModels, sums_are_transferred_as_codes_as_on_the_cpu) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const Shapes shape = {47, dtype == DType::kFloat32 ? 181 : 363};
    OneGraph graph;
    const EngineParts parts = graph.parts(
        {graph.node("_c10d_functional.all_reduce.default", sum_of(graph.input(dtype, shape)), shape, dtype)});
    for (const int size : {2, 3, 4}) {
      SCOPED_TRACE(std::to_string(size) + " ranks, " + std::string(to_string(dtype)));
      const int before = HostRuntime::instance().launches("engine_add_groups");
      const std::vector<float> device = output_of_ranks(parts, size, shape, dtype, true);
      EXPECT_EQ(HostRuntime::instance().launches("engine_add_groups") - before, 2 * size);
      const std::vector<float> cpu = output_of_ranks(parts, size, shape, dtype, false);
      ASSERT_EQ(device.size(), cpu.size());
      std::size_t others = 0;
      for (std::size_t i = 0; i < cpu.size(); ++i) {
        others += std::fabs(device[i] - cpu[i]) > 1e-5F;
        ASSERT_NEAR(device[i], cpu[i], static_cast<float>(size) * 2.0F / 127.0F) << i;
      }
      EXPECT_LT(others, cpu.size() / 100);
    }
  }
}

TEST_F(DeviceModels, the_norm_after_a_coded_sum_is_the_norm_of_the_sum) {
  constexpr std::int64_t kRows = 8, kWidth = 1152;
  const Shapes shape = {kRows, kWidth};
  OneGraph graph;
  const ValueId sum = graph.node("_c10d_functional.all_reduce.default", sum_of(graph.input(DType::kFloat32, shape)),
                                 shape, DType::kFloat32);
  Arguments arguments = {{"input", of(sum)}, {"eps", 1e-5}};
  arguments["normalized_shape"] = std::vector<SymbolicInt>{kWidth};
  const ValueId norm = graph.node("aten.rms_norm.default", arguments, shape, DType::kFloat32);
  std::vector<float> expected = output_of_ranks(graph.parts({sum}), 2, shape, DType::kFloat32, true);
  const std::vector<float> made = output_of_ranks(graph.parts({norm}), 2, shape, DType::kFloat32, true);
  ASSERT_EQ(expected.size(), made.size());
  for (std::size_t row = 0; row < kRows; ++row) {
    double squares = 0.0;
    for (std::size_t i = 0; i < kWidth; ++i) squares += std::pow(expected[row * kWidth + i], 2);
    for (std::size_t i = 0; i < kWidth; ++i)
      expected[row * kWidth + i] /= static_cast<float>(std::sqrt(squares / kWidth + 1e-5));
  }
  expect_near(made, expected, 2e-6F);
}

}  // namespace
}  // namespace accord::engine
