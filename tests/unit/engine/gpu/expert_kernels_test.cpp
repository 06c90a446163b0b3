// Kernels for mixtures of experts by themselves, in blocks of several sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

#include "engine/gpu/kernels/grouped_product_kernel.hpp"
#include "unit/engine/gpu/blocks.hpp"
#include "unit/engine/gpu/engines.hpp"

namespace accord::engine {
namespace {

using accord::testing::BlockSize;
using accord::testing::DeviceArray;
using accord::testing::kGpu;
using accord::testing::run_blocks;
using accord::testing::some_numbers;

/// Choices of experts over several ranks. This rank is the second: of three ranks it has experts 4 to 9, of two all
/// from 4 on.
struct Sorted {
  Sorted(std::int64_t choices, std::int64_t experts, std::int64_t tile_rows, const BlockSize& size)
      : ids(static_cast<std::size_t>(choices)), tokens(ids.size(), -2), places(ids.size(), -2) {
    std::mt19937 random(9);
    for (std::int64_t& id : ids) id = std::uniform_int_distribution<std::int64_t>(0, 12)(random);
    kernel.ids = ids.data();
    kernel.choices = choices;
    kernel.top_k = 2;
    kernel.first_expert = 4;
    kernel.experts = experts;
    kernel.total_experts = 13;
    kernel.tile_rows = tile_rows;
    kernel.tokens = tokens.data();
    kernel.places = places.data();
    kernel.report.fault = &fault;
    tiles.assign(static_cast<std::size_t>(kernel.tile_count()), {-2, -2, -2});
    kernel.tiles = tiles.data();
    run_blocks(kernel, 3, size, static_cast<std::size_t>(size.threads) * sizeof(std::int32_t));
  }
  std::vector<std::int64_t> ids, tokens, places;
  std::vector<ExpertTile> tiles;
  GroupChoices kernel;
  Fault fault;
};

TEST(DeviceExpertKernels, choices_are_sorted_by_expert_and_split_into_tiles) {
  for (const BlockSize& size : {BlockSize{1, 1}, BlockSize{6, 2}, BlockSize{32, 8}}) {
    for (const std::int64_t choices : {2, 10, 200}) {
      for (const std::int64_t experts : {1, 6, 9}) {
        for (const std::int64_t tile_rows : {1, 4, 64}) {
          SCOPED_TRACE(std::to_string(choices) + " choices, " + std::to_string(experts) + " experts, tiles of " +
                       std::to_string(tile_rows) + ", " + std::to_string(size.threads) + " threads");
          const Sorted sorted(choices, experts, tile_rows, size);
          std::vector<std::int64_t> order;
          for (std::int64_t i = 0; i < choices; ++i) {
            const std::int64_t id = sorted.ids[static_cast<std::size_t>(i)];
            if (id >= 4 && id < 4 + experts) order.push_back(i);
          }
          std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
            return sorted.ids[static_cast<std::size_t>(a)] < sorted.ids[static_cast<std::size_t>(b)];
          });
          std::vector<std::int64_t> tokens(sorted.ids.size(), choices / 2), places(sorted.ids.size(), -1);
          for (std::size_t i = 0; i < order.size(); ++i) {
            tokens[i] = order[i] / 2;
            places[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
          }
          EXPECT_EQ(sorted.tokens, tokens);
          EXPECT_EQ(sorted.places, places);
          EXPECT_LE(sorted.tiles.size(), static_cast<std::size_t>(choices));
          std::size_t next = 0;
          for (const ExpertTile& tile : sorted.tiles) {
            ASSERT_TRUE(tile.rows >= 0 && tile.rows <= tile_rows);
            for (std::int64_t row = tile.first; row < tile.first + tile.rows; ++row, ++next) {
              ASSERT_EQ(row, static_cast<std::int64_t>(next));
              EXPECT_EQ(sorted.ids[static_cast<std::size_t>(order.at(next))], tile.expert + 4);
            }
          }
          EXPECT_EQ(next, order.size());
          EXPECT_EQ(sorted.fault.count, 0U);
        }
      }
    }
  }
}

class DeviceExpertProducts : public accord::testing::OnAnyDevice<> {
 protected:
  /// `group`: for float8, the inputs that share a scale; 0: all inputs of an output.
  template <DType kDType, bool kGated, WeightKind kWeights = WeightKind::kSameAsRows>
  static void expect_products(std::int64_t k, std::int64_t n, int threads, int group = 0);
};

/// Rows of two experts: those of the first in two tiles, with an empty tile in between.
template <DType kDType, bool kGated, WeightKind kWeights>
void DeviceExpertProducts::expect_products(std::int64_t k, std::int64_t n, int threads, int group) {
  constexpr std::int64_t kRows = 64 + 5 + 3, kExperts = 3;
  using Bytes = std::vector<std::byte>;
  const auto stored = [](std::int64_t count, unsigned seed, DType dtype) {
    Bytes bytes(static_cast<std::size_t>(count) * size_of(dtype));
    const std::vector<float> numbers = some_numbers(static_cast<std::size_t>(count), seed);
    for (std::int64_t i = 0; i < count; ++i)
      device::store_float(bytes.data(), dtype, i, numbers[static_cast<std::size_t>(i)]);
    return bytes;
  };
  constexpr DType kWeight = kWeights == WeightKind::kFloat8 ? DType::kFloat8E4M3FN : kDType;
  const Bytes x = stored(kRows * k, 1, kDType);
  const Bytes weight = stored(kExperts * n * k, 2, kWeight), gate = stored(kExperts * n * k, 3, kWeight);
  const std::int64_t groups = group == 0 ? 1 : (k + group - 1) / group;
  const std::vector<float> scales = some_numbers(static_cast<std::size_t>(kExperts * groups * n), 4);
  const std::vector<float> gate_scales = some_numbers(scales.size(), 5);
  const std::vector<ExpertTile> tiles = {{0, 0, 64}, {64, 0, 5}, {69, 1, 0}, {69, 2, 3}};
  const accord::testing::OnDevice on{runtime(), kGpu};
  const DeviceArray on_x(on, x, kDType), on_weight(on, weight, kWeight), on_gate(on, gate, kWeight);
  const DeviceArray on_scales(on, scales, DType::kFloat32), on_gate_scales(on, gate_scales, DType::kFloat32);
  const DeviceArray on_tiles(on, tiles, DType::kInt64);
  const DeviceArray on_y(on, std::vector<float>(static_cast<std::size_t>(kRows * n), NAN), DType::kFloat32);
  const auto bytes_of = [](const DeviceArray& array) { return static_cast<const std::byte*>(array.buffer().data); };
  ExpertsManyRows<kDType, kGated, kWeights> kernel;
  kernel.tiles = static_cast<const ExpertTile*>(on_tiles.buffer().data);
  kernel.tile_count = static_cast<std::int64_t>(tiles.size());
  kernel.weight_bytes = n * k * static_cast<std::int64_t>(size_of(kWeight));
  kernel.y_row_bytes = n * static_cast<std::int64_t>(sizeof(float));
  kernel.call.dtype = kDType;
  kernel.call.n = n;
  kernel.call.k = k;
  kernel.call.x = bytes_of(on_x);
  kernel.call.x_row_bytes = k * static_cast<std::int64_t>(size_of(kDType));
  kernel.call.weight.data = bytes_of(on_weight);
  kernel.call.gate.data = kGated ? bytes_of(on_gate) : nullptr;
  if (kWeights == WeightKind::kFloat8) {
    kernel.call.weight.scales = static_cast<const float*>(on_scales.buffer().data);
    kernel.call.gate.scales = static_cast<const float*>(on_gate_scales.buffer().data);
    kernel.call.weight.group_bits = kernel.call.gate.group_bits =
        group == 0 ? 0 : std::countr_zero(static_cast<unsigned>(group));
  }
  kernel.call.activation = kernels::Activation::kSilu;
  kernel.call.y = static_cast<std::byte*>(on_y.buffer().data);
  const Status launched = device::launch(runtime(), kernel, {2, threads, kernel.kSharedBytes}, kGpu, {});
  ASSERT_TRUE(launched.ok()) << launched.to_string();
  const std::vector<float> y = on_y.values<float>();
  for (std::int64_t row = 0; row < kRows; ++row) {
    const std::int64_t expert = row < 69 ? 0 : 2;
    for (std::int64_t output = 0; output < n; ++output) {
      double sum = 0.0, gated = 0.0;
      for (std::int64_t i = 0; i < k; ++i) {
        const double number = device::load_float(x.data(), kDType, row * k + i);
        const auto value = [&](const Bytes& matrix, const std::vector<float>& its_scales) {
          const float element = device::load_float(matrix.data(), kWeight, (expert * n + output) * k + i);
          if (kWeights != WeightKind::kFloat8) return double{element};
          const std::int64_t of_group = group == 0 ? 0 : i / group;
          const float scale = its_scales[static_cast<std::size_t>((expert * groups + of_group) * n + output)];
          if (group == 0) return double{element} * double{scale};
          float rounded = 0.0F;  // in the dtype of the rows
          device::store_float(&rounded, kDType, 0, element * scale);
          return double{device::load_float(&rounded, kDType, 0)};
        };
        sum += number * value(weight, scales);
        gated += number * value(gate, gate_scales);
      }
      const double by = kGated ? gated : sum, active = by / (1 + std::exp(-by));
      const double expected = kGated ? sum * active : active;
      ASSERT_NEAR(double{y[static_cast<std::size_t>(row * n + output)]}, expected,
                  1e-4 * std::max(1.0, std::fabs(expected)))
          << "row " << row << ", output " << output;
    }
  }
}

TEST_P(DeviceExpertProducts, tiles_of_rows_are_multiplied_with_their_experts_weights) {
  for (const int threads : {32, 96, 256}) {
    for (const auto& [k, n] : {std::pair{72, 20}, std::pair{35, 131}, std::pair{8, 64}}) {
      SCOPED_TRACE(std::to_string(threads) + " threads, " + std::to_string(k) + " to " + std::to_string(n));
      expect_products<DType::kFloat32, false>(k, n, threads);
      expect_products<DType::kFloat32, true>(k, n, threads);
      expect_products<DType::kBFloat16, false>(k, n, threads);
      expect_products<DType::kBFloat16, true>(k, n, threads);
      expect_products<DType::kFloat16, true>(k, n, threads);
      expect_products<DType::kFloat32, true, WeightKind::kFloat8>(k, n, threads);
      expect_products<DType::kBFloat16, false, WeightKind::kFloat8>(k, n, threads);
      expect_products<DType::kBFloat16, true, WeightKind::kFloat8>(k, n, threads);
      expect_products<DType::kFloat16, false, WeightKind::kFloat8>(k, n, threads);
      expect_products<DType::kFloat32, false, WeightKind::kFloat8>(k, n, threads, 16);
      expect_products<DType::kBFloat16, true, WeightKind::kFloat8>(k, n, threads, 32);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceExpertProducts, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceExpertProducts, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
