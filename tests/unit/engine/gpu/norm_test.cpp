// A sum over the ranks and the norm of its rows: one kernel if there are few rows.
#include "engine/gpu/norm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "device/host_block.hpp"
#include "device/numbers.hpp"
#include "exec/device/run_plan.hpp"
#include "plan/algorithms.hpp"
#include "unit/exec/device_ranks.hpp"

namespace accord::testing {
namespace {

using device::rounded_to;

struct Case {
  DType dtype = DType::kFloat32;
  bool subtract_mean = false;
  bool has_all = false;  ///< residual, sum, weight, bias and addend
  std::int64_t rows = 1, width = 64;
};

std::vector<float> some_numbers(std::int64_t count, DType dtype, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> between(-2.0F, 2.0F);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = rounded_to(dtype, between(random));
  return values;
}

Bytes stored(const std::vector<float>& values, DType dtype) {
  Bytes bytes(values.size() * size_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i)
    device::store_float(bytes.data(), dtype, static_cast<std::int64_t>(i), values[i]);
  return bytes;
}

std::vector<float> loaded(const DeviceArray& array) {
  const Bytes bytes = array.bytes();
  std::vector<float> values(array.buffer().count);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = device::load_float(bytes.data(), array.buffer().dtype, static_cast<std::int64_t>(i));
  return values;
}

/// A rank's data besides the others' parts, and its results. `norm` refers to them.
struct OnRank {
  std::vector<float> part, residual, weight, bias, addend;
  std::unique_ptr<DeviceArray> values, residuals, weights, biases, addends, y, sum;
  engine::NormCalculation norm;

  OnRank(const OnDevice& on, const Case& one, int rank) {
    const std::int64_t count = one.rows * one.width;
    const auto array = [&](const std::vector<float>& numbers) {
      return std::make_unique<DeviceArray>(on, stored(numbers, one.dtype), one.dtype);
    };
    part = some_numbers(count, one.dtype, 10 + static_cast<unsigned>(rank));
    residual = some_numbers(count, one.dtype, 2), weight = some_numbers(one.width, one.dtype, 3);
    bias = some_numbers(one.width, one.dtype, 4), addend = some_numbers(one.width, one.dtype, 5);
    values = array(part), residuals = array(residual), weights = array(weight), biases = array(bias);
    addends = array(addend), y = array(std::vector<float>(part.size(), 7.0F)), sum = array(part);
    const auto rows_of = [&](const DeviceArray& rows) { return engine::RowOperand{rows.buffer().data, one.width}; };
    norm.subtract_mean = one.subtract_mean;
    norm.dtype = one.dtype;
    norm.rows = one.rows, norm.width = one.width;
    norm.eps = 1e-5F;
    norm.x = rows_of(*values);
    norm.y = rows_of(*y);
    if (!one.has_all) return;
    norm.residual = rows_of(*residuals);
    norm.sum = rows_of(*sum);
    norm.weight = weights->buffer().data, norm.bias = biases->buffer().data, norm.addend = addends->buffer().data;
  }
};

struct Expected {
  std::vector<float> sum, y;
};

/// Computed in double, except for the sums, which are rounded where PyTorch rounds.
Expected expected_of(const Case& one, const std::vector<std::unique_ptr<OnRank>>& ranks) {
  Expected made;
  for (std::int64_t row = 0; row < one.rows; ++row) {
    double mean = 0, variance = 0;
    const std::size_t first = made.sum.size();
    for (std::int64_t i = 0; i < one.width; ++i) {
      const std::size_t at = first + static_cast<std::size_t>(i);
      float s = 0;
      for (const auto& rank : ranks) s += rank->part[at];
      s = rounded_to(one.dtype, s);
      if (one.has_all) s = rounded_to(one.dtype, s + ranks[0]->addend[static_cast<std::size_t>(i)]);
      if (one.has_all) s = rounded_to(one.dtype, s + ranks[0]->residual[at]);
      made.sum.push_back(s);
      mean += one.subtract_mean ? static_cast<double>(s) / static_cast<double>(one.width) : 0;
    }
    for (std::int64_t i = 0; i < one.width; ++i)
      variance += std::pow(made.sum[first + static_cast<std::size_t>(i)] - mean, 2) / static_cast<double>(one.width);
    for (std::size_t i = 0; i < static_cast<std::size_t>(one.width); ++i) {
      double y = (made.sum[first + i] - mean) / std::sqrt(variance + 1e-5);
      if (one.has_all) y = y * ranks[0]->weight[i] + ranks[0]->bias[i];
      made.y.push_back(static_cast<float>(y));
    }
  }
  return made;
}

void expect_near(const std::vector<float>& found, const std::vector<float>& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(found[i], expected[i], tolerance * std::max(1.0, std::fabs(static_cast<double>(expected[i])))) << i;
}

plan::Plan plan_of(const char* algorithm, int size) {
  return plan::make_plan(*plan::algorithm_by_name(Collective::kAllReduce, algorithm).value(),
                         topology::Topology::uniform(size), {.collective = Collective::kAllReduce})
      .value();
}

/// The norms that had a kernel of their own.
int launches_of_norms(const HostRuntime& runtime) {
  int all = 0;
  for (const auto& [kernel, count] : runtime.launches())
    if (kernel.starts_with("norm_")) all += count;
  return all;
}

/// Runs once on all ranks. `together`: with one kernel on each rank instead of two.
void expect_norms(DeviceRanks& ranks, const char* algorithm, const Case& one, bool together) {
  const int separate = launches_of_norms(ranks.runtime());
  std::vector<std::unique_ptr<OnRank>> each;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    each.push_back(std::make_unique<OnRank>(ranks.on(rank), one, rank));
    const exec::RequestRecord request{.collective = Collective::kAllReduce,
                                      .dtype = one.dtype,
                                      .count = static_cast<std::uint64_t>(one.rows * one.width)};
    void* const at = each.back()->values->buffer().data;
    const engine::gpu::NormEpilogue norm(each.back()->norm);
    const Status launched = ranks.launch(plan_of(algorithm, ranks.size()), rank, request, at, at, &norm);
    ASSERT_TRUE(launched.ok()) << launched.to_string();
  }
  const double tolerance = one.dtype == DType::kFloat32 ? 2e-6 : one.dtype == DType::kFloat16 ? 1e-3 : 8e-3;
  const Expected expected = expected_of(one, each);
  for (const auto& rank : each) {
    expect_near(loaded(*rank->y), expected.y, tolerance);
    if (one.has_all) expect_near(loaded(*rank->sum), expected.sum, tolerance);
    EXPECT_EQ(loaded(*rank->y), loaded(*each[0]->y)) << "the same bits on all ranks";
  }
  EXPECT_EQ(launches_of_norms(ranks.runtime()) - separate, together ? 0 : ranks.size());
}

TEST(DeviceNorm, few_rows_are_normalized_by_the_kernel_that_sums_them) {
  for (const int size : {1, 2, 3}) {
    DeviceRanks ranks(size, 3, 64 << 10);
    for (const char* algorithm : {"packet", "one_shot", "two_shot"})
      for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
        for (const bool subtract_mean : {false, true})
          for (const bool has_all : {false, true}) {
            SCOPED_TRACE(std::string(algorithm) + " " + std::string(to_string(dtype)));
            expect_norms(ranks, algorithm, {dtype, subtract_mean, has_all, 1, 100}, true);
            if (::testing::Test::HasFailure()) return;
          }
  }
}

// Messages of three instances, whose blocks meet at each launch, with messages of one instance in between.
TEST(DeviceNorm, blocks_wait_for_all_parts_of_a_row) {
  DeviceRanks ranks(2, 3, 256 << 10);
  for (int time = 0; time < 4; ++time) {
    for (const char* algorithm : {"packet", "two_shot"}) {
      expect_norms(ranks, algorithm, {DType::kFloat32, false, true, 3, 1500}, true);
      expect_norms(ranks, algorithm, {DType::kFloat32, false, false, 1, 40}, true);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(DeviceNorm, rows_of_a_short_message_have_their_own_blocks) {
  DeviceRanks ranks(3, 4, 64 << 10);
  for (int time = 0; time < 3; ++time) expect_norms(ranks, "packet", {DType::kBFloat16, time == 1, true, 4, 24}, true);
}

TEST(DeviceNorm, more_rows_than_blocks_have_a_separate_kernel) {
  DeviceRanks ranks(2, 2, 256 << 10);
  expect_norms(ranks, "packet", {DType::kFloat32, false, true, 4, 1000}, false);
  expect_norms(ranks, "packet", {DType::kBFloat16, true, true, 40, 8}, false);
}

TEST(DeviceNorm, a_norm_is_not_written_if_its_sum_never_arrives) {
  DeviceRanks ranks(2, 2, 64 << 10);
  const Case one{DType::kFloat32, false, false, 1, 3000};
  const OnRank alone(ranks.on(0), one, 0);
  void* const at = alone.values->buffer().data;
  const exec::RequestRecord request{.collective = Collective::kAllReduce, .count = 3000};
  const engine::gpu::NormEpilogue norm(alone.norm);
  ASSERT_TRUE(ranks.launch(plan_of("packet", 2), 0, request, at, at, &norm).ok());
  ranks.end_waits();
  EXPECT_EQ(loaded(*alone.y), std::vector<float>(3000, 7.0F));
}

// A kernel that waits for other ranks must not hold multiprocessors while it waits for the kernel before it.
TEST(DeviceNorm, kernels_of_plans_do_not_start_early) {
  std::vector<const char*> names(std::begin(exec::kRunPlanNames), std::end(exec::kRunPlanNames));
  for (const char* const name : {"run_plan_norm_float32", "run_plan_norm_float16", "run_plan_norm_bfloat16"})
    names.push_back(name);
  for (const char* const name : names) {
    const HostKernel* const kernel = host_kernel(name);
    ASSERT_NE(kernel, nullptr) << name;
    EXPECT_FALSE(kernel->starts_early) << name;
  }
}

}  // namespace
}  // namespace accord::testing
