// Convolutions, norms over groups of channels and enlarged images on a device match the CPU's kernels within the
// rounding of their dtype.
#include <gmock/gmock.h>

#include "unit/engine/gpu/graphs.hpp"

namespace accord::engine {
namespace {

using accord::testing::HostBlas;
using accord::testing::HostRuntime;
using accord::testing::kGpu;
using accord::testing::some_numbers;

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

class DeviceImages : public DeviceOps {};

/// A convolution over an image [batch, channels, height, width], or over a length [batch, channels, length].
struct ConvolutionCase {
  Shapes image, weight;
  std::string stride = "1", padding = "0", dilation = "1";
  std::int64_t groups = 1;
  bool has_bias = true;
  bool has_products = true;
};

Shapes output_of(const ConvolutionCase& one) {
  Shapes sizes = {one.image[0], one.weight[0]};
  for (std::size_t dim = 2; dim < one.image.size(); ++dim)
    sizes.push_back(
        (one.image[dim] + 2 * std::stoi(one.padding) - std::stoi(one.dilation) * (one.weight[dim] - 1) - 1) /
            std::stoi(one.stride) +
        1);
  return sizes;
}

ValueId convolution(OneGraph& graph, const ConvolutionCase& one, ValueId x, ValueId weight, DType dtype) {
  const bool length = one.image.size() == 3;
  const auto both = [&](const std::string& number) { return length ? numbers({number}) : numbers({number, number}); };
  Arguments arguments = {{"input", of(x)},
                         {"weight", of(weight)},
                         {"stride", both(one.stride)},
                         {"padding", both(one.padding)},
                         {"dilation", both(one.dilation)},
                         {"transposed", false},
                         {"output_padding", both("0")},
                         {"groups", number(one.groups)}};
  arguments["bias"] = one.has_bias ? of(graph.weight(dtype, {one.weight[0]})) : Argument(None());
  return graph.node("aten.convolution.default", arguments, output_of(one), dtype);
}

const ConvolutionCase kCases[] = {
    {.image = {2, 6, 7, 9}, .weight = {10, 6, 3, 3}, .padding = "1"},
    {.image = {1, 16, 5, 6}, .weight = {9, 16, 3, 2}, .stride = "2", .padding = "2", .has_bias = false},
    {.image = {2, 5, 9, 8}, .weight = {8, 5, 3, 3}, .padding = "2", .dilation = "2"},
    {.image = {2, 6, 8, 7}, .weight = {20, 3, 3, 3}, .stride = "2", .padding = "1", .groups = 2},
    {.image = {1, 32, 4, 5}, .weight = {24, 16, 2, 2}, .groups = 2},
    {.image = {2, 6, 4, 5}, .weight = {9, 6, 1, 1}},
    {.image = {2, 6, 4, 5}, .weight = {16, 3, 1, 1}, .groups = 2},
    {.image = {2, 6, 4, 5}, .weight = {8, 6, 1, 1}, .padding = "1"},
    {.image = {1, 3, 12, 8}, .weight = {16, 3, 4, 4}, .stride = "4"},
    {.image = {2, 6, 9}, .weight = {9, 6, 3}, .stride = "2", .padding = "1"},
    {.image = {2, 16, 9}, .weight = {8, 16, 3}, .padding = "1", .has_bias = false},
    // Groups with few outputs.
    {.image = {2, 6, 7, 9}, .weight = {6, 1, 3, 3}, .padding = "1", .groups = 6, .has_products = false},
    {.image = {1, 6, 7, 8}, .weight = {12, 2, 3, 2}, .stride = "2", .padding = "1", .groups = 3, .has_products = false},
    {.image = {2, 6, 7, 5}, .weight = {4, 6, 3, 3}, .dilation = "2", .has_bias = false, .has_products = false},
    {.image = {2, 6, 9}, .weight = {5, 6, 4}, .padding = "2", .has_products = false},
};

TEST_P(DeviceImages, convolutions_of_every_kind) {
  for (const DType dtype : kFloats) {
    for (std::size_t i = 0; i < std::size(kCases); ++i) {
      SCOPED_TRACE("case " + std::to_string(i) + " of " + std::string(to_string(dtype)));
      const ConvolutionCase& one = kCases[i];
      OneGraph graph;
      const ValueId x = graph.input(dtype, one.image), weight = graph.weight(dtype, one.weight, 0.5F);
      const int products = HostBlas::instance().products();
      expect_same(graph, convolution(graph, one, x, weight, dtype), 8 * error_of(dtype));
      if (counts()) {
        EXPECT_EQ(HostBlas::instance().products() > products, one.has_products);
      }
    }
  }
}

TEST_P(DeviceImages, patches_larger_than_an_arena_piece_are_split) {
  const ConvolutionCase one{.image = {1, 64, 131, 130}, .weight = {8, 64, 3, 3}, .padding = "1"};
  OneGraph graph;
  const ValueId x = graph.input(DType::kFloat32, one.image), weight = graph.weight(DType::kFloat32, one.weight, 0.1F);
  const int products = HostBlas::instance().products();
  expect_same(graph, convolution(graph, one, x, weight, DType::kFloat32), 4 * kFloat32Error);
  if (counts()) {
    EXPECT_EQ(HostBlas::instance().products() - products, 2 * 2);  // in the first run, and in a graph
  }
}

TEST_P(DeviceImages, a_computed_weight_is_reordered_like_stored_ones) {
  const ConvolutionCase one{.image = {2, 6, 7, 9}, .weight = {10, 6, 3, 3}, .padding = "1", .has_bias = false};
  OneGraph known, computed;
  const ValueId x = known.input(DType::kFloat32, one.image), weight = known.weight(DType::kFloat32, one.weight);
  const ValueId expected = convolution(known, one, x, weight, DType::kFloat32);
  const Result<Outputs> cpu = run_on({}, known.parts({expected}), known.inputs());
  ASSERT_TRUE(cpu.ok()) << cpu.status().to_string();
  const ValueId image = computed.input(DType::kFloat32, one.image);
  const ValueId other = computed.input(DType::kFloat32, one.weight, some_numbers(count_of(one.weight), 7));
  const ValueId y = convolution(computed, one, image, other, DType::kFloat32);
  const Result<Outputs> gpu = run_on(kGpu, computed.parts({y}), computed.inputs());
  ASSERT_TRUE(gpu.ok()) << gpu.status().to_string();
  expect_near((*gpu)[0], (*cpu)[0], kFloat32Error);
}

TEST_P(DeviceImages, norms_over_groups_of_channels) {
  for (const DType dtype : kFloats) {
    for (const Shapes& image : {Shapes{2, 6, 5, 4}, Shapes{3, 6, 7}}) {
      for (const std::int64_t groups : {1, 3, 6}) {
        for (const bool scales : {false, true}) {
          OneGraph graph;
          const ValueId x = graph.input(dtype, image);
          Arguments arguments = {{"input", of(x)}, {"num_groups", number(groups)}, {"eps", 1e-3}};
          if (scales) {
            arguments["weight"] = of(graph.weight(dtype, {6}));
            arguments["bias"] = of(graph.weight(dtype, {6}));
          }
          expect_same(graph, graph.node("aten.group_norm.default", arguments, image, dtype), 2 * error_of(dtype));
        }
      }
    }
  }
}

TEST_P(DeviceImages, upsampled_images_of_every_element_size) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kUInt8, DType::kInt64}) {
    for (const std::int64_t channels : {3, 16}) {
      for (const auto& [height, width] : {std::pair(8, 10), std::pair(6, 5), std::pair(12, 15)}) {
        OneGraph graph;
        const ValueId x = graph.input(dtype, {2, channels, 4, 5});
        const ValueId y =
            graph.node("aten.upsample_nearest2d.default",
                       {{"self", of(x)}, {"output_size", numbers({std::to_string(height), std::to_string(width)})}},
                       {2, channels, height, width}, dtype);
        expect_same(graph, y, 0.0F);
      }
    }
  }
}

TEST_P(DeviceImages, a_block_of_a_unet_keeps_its_channels_last) {
  for (const DType dtype : kFloats) {
    OneGraph graph;
    const ConvolutionCase first{.image = {2, 4, 6, 6}, .weight = {16, 4, 3, 3}, .padding = "1"};
    const ConvolutionCase second{.image = {2, 16, 12, 12}, .weight = {8, 16, 3, 3}, .padding = "1"};
    const ValueId x = graph.input(dtype, first.image);
    const ValueId a = convolution(graph, first, x, graph.weight(dtype, first.weight, 0.3F), dtype);
    const ValueId scale = graph.weight(dtype, {16}), shift = graph.weight(dtype, {16});
    const ValueId normed =
        graph.node("aten.group_norm.default",
                   {{"input", of(a)}, {"num_groups", number(4)}, {"weight", of(scale)}, {"bias", of(shift)}},
                   {2, 16, 6, 6}, dtype);
    const ValueId active = graph.node("aten.silu.default", {{"self", of(normed)}}, {2, 16, 6, 6}, dtype);
    const ValueId sum = graph.node("aten.add.Tensor", {{"self", of(active)}, {"other", of(a)}}, {2, 16, 6, 6}, dtype);
    const ValueId large =
        graph.node("aten.upsample_nearest2d.default", {{"self", of(sum)}, {"output_size", numbers({"12", "12"})}},
                   {2, 16, 12, 12}, dtype);
    const ValueId b = convolution(graph, second, large, graph.weight(dtype, second.weight, 0.3F), dtype);
    const ValueId rows =
        graph.node("aten.view.default", {{"self", of(b)}, {"size", numbers({"2", "8", "144"})}}, {2, 8, 144}, dtype);
    expect_same(graph, std::vector{rows, sum}, 16 * error_of(dtype));
  }
}

TEST_P(DeviceImages, transposed_convolutions_are_rejected_with_their_source_line) {
  OneGraph graph;
  const ValueId x = graph.input(DType::kFloat32, {1, 2, 4, 4}), weight = graph.weight(DType::kFloat32, {2, 3, 2, 2});
  const ValueId y = graph.node("aten.convolution.default",
                               {{"input", of(x)},
                                {"weight", of(weight)},
                                {"bias", None()},
                                {"stride", numbers({"1", "1"})},
                                {"padding", numbers({"0", "0"})},
                                {"dilation", numbers({"1", "1"})},
                                {"transposed", true},
                                {"output_padding", numbers({"0", "0"})},
                                {"groups", number(1)}},
                               {1, 3, 5, 5}, DType::kFloat32);
  const Status status = run_on(kGpu, graph.parts({y}), graph.inputs()).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(),
              ::testing::AllOf(::testing::HasSubstr("model.py:0"), ::testing::HasSubstr("transposed convolution")));
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceImages, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceImages, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
