// Kernels on images with channels last, compared with plain loops. tests/python/engine/test_ops.py compares them with
// PyTorch.

#include "kernels/image.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "random_floats.hpp"

namespace accord::kernels {
namespace {

TEST(Image, a_patch_has_the_elements_under_the_kernel_and_zeros_outside) {
  ConvolutionShape shape;
  shape.batch = 2;
  shape.channels = 3;
  shape.input = {2, 3};
  shape.output = {2, 2};
  shape.kernel = {2, 3};
  shape.stride = {1, 2};
  shape.padding = {1, 1};
  shape.dilation = {1, 1};
  std::vector<float> x(2 * 2 * 3 * 3);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i + 1);
  for (std::int64_t place = 0; place < 8; ++place) {
    std::vector<float> patch(2 * 3 * 2, -1.0F);
    gather_patch(shape, reinterpret_cast<const std::byte*>(x.data()), sizeof(float), place, 1, 2,
                 reinterpret_cast<std::byte*>(patch.data()));
    const std::int64_t batch = place / 4, top = place / 2 % 2 - 1, left = place % 2 * 2 - 1;
    std::size_t at = 0;
    for (std::int64_t i = top; i < top + 2; ++i) {
      for (std::int64_t j = left; j < left + 3; ++j) {
        for (std::int64_t c = 1; c < 3; ++c, ++at) {
          const bool inside = i >= 0 && i < 2 && j >= 0 && j < 3;
          const float expected = inside ? x[static_cast<std::size_t>(((batch * 2 + i) * 3 + j) * 3 + c)] : 0.0F;
          ASSERT_EQ(patch[at], expected) << place << ", " << i << ", " << j << ", " << c;
        }
      }
    }
  }
}

TEST(Image, an_upsampled_image_repeats_the_nearest_element) {
  const std::vector<std::uint16_t> x = {1, 2, 3, 4, 5, 6};  // [1, 1, 3, 2]
  std::vector<std::uint16_t> y(2 * 5 * 2);
  UpsampleCall call;
  call.batch = 1;
  call.input = {1, 3};
  call.output = {2, 5};
  call.position_bytes = 4;
  call.x = reinterpret_cast<const std::byte*>(x.data());
  call.y = reinterpret_cast<std::byte*>(y.data());
  upsample_nearest(call, 0, 2);
  const std::vector<std::uint16_t> row = {1, 2, 1, 2, 3, 4, 3, 4, 5, 6};
  EXPECT_EQ(std::vector<std::uint16_t>(y.begin(), y.begin() + 10), row);
  EXPECT_EQ(std::vector<std::uint16_t>(y.begin() + 10, y.end()), row);
}

TEST(Image, groups_are_normalized_over_all_positions) {
  constexpr std::int64_t kPositions = 150, kChannels = 140, kGroups = 2, kWidth = kChannels / kGroups;
  std::vector<float> x = random_floats(static_cast<std::size_t>(2 * kPositions * kChannels), 1);
  for (float& value : x) value += 30.0F;
  const std::vector<float> weight = random_floats(kChannels, 2), bias = random_floats(kChannels, 3);
  std::vector<float> y(x.size());
  GroupNormCall call;
  call.batch = 2;
  call.positions = kPositions;
  call.channels = kChannels;
  call.groups = kGroups;
  call.x = x.data();
  call.weight = weight.data();
  call.bias = bias.data();
  call.y = y.data();
  group_norm(call, 0, 1);
  group_norm(call, 1, 4);
  for (std::int64_t group = 0; group < 4; ++group) {
    const auto index = [&](std::int64_t place, std::int64_t c) {
      return static_cast<std::size_t>((group / 2 * kPositions + place) * kChannels + group % 2 * kWidth + c);
    };
    double mean = 0.0, variance = 0.0;
    for (std::int64_t i = 0; i < kPositions * kWidth; ++i)
      mean += static_cast<double>(x[index(i / kWidth, i % kWidth)]);
    mean /= static_cast<double>(kPositions * kWidth);
    for (std::int64_t i = 0; i < kPositions * kWidth; ++i) {
      variance += std::pow(static_cast<double>(x[index(i / kWidth, i % kWidth)]) - mean, 2.0);
    }
    variance /= static_cast<double>(kPositions * kWidth);
    for (std::int64_t i = 0; i < kPositions * kWidth; ++i) {
      const auto channel = static_cast<std::size_t>(group % 2 * kWidth + i % kWidth);
      const double normal = (static_cast<double>(x[index(i / kWidth, i % kWidth)]) - mean) / std::sqrt(variance + 1e-5);
      const double expected = normal * static_cast<double>(weight[channel]) + static_cast<double>(bias[channel]);
      ASSERT_NEAR(static_cast<double>(y[index(i / kWidth, i % kWidth)]), expected, 2e-5);
    }
  }
}

}  // namespace
}  // namespace accord::kernels
