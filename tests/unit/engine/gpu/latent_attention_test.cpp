// Attention whose cache has its values in its keys, and products with a matrix for each head, compared with the CPU.
#include "engine/gpu/paged_attention.hpp"
#include "unit/engine/gpu/graphs.hpp"
#include "unit/engine/gpu/one_attention.hpp"

namespace accord::engine {
namespace {

using accord::testing::HostRuntime;
using accord::testing::kGpu;
using accord::testing::OneAttention;

class DeviceLatentAttention : public accord::testing::OnAnyDevice<> {};

TEST_P(DeviceLatentAttention, matches_the_cpu_with_the_kernel_for_its_heads) {
  constexpr DType kBFloat16 = DType::kBFloat16, kInt8 = DType::kInt8;
  struct Expected {
    OneAttention attention;
    std::string kernel;
  };
  for (const auto& [attention, kernel] : {
           Expected{{.heads = 16, .kv_heads = 1, .head_dim = 40, .value_dim = 32, .values_in_keys = true},
                    "engine_decode_8_heads_float32"},
           Expected{{.heads = 6,
           .kv_heads = 1,
           .head_dim = 48,
           .value_dim = 32,
           .window = 100,
           .cache = kBFloat16,
           .dtype = kBFloat16,
           .values_in_keys = true},
                    "engine_decode_4_heads_bfloat16"},
           Expected{
               {.heads = 4, .kv_heads = 1, .head_dim = 48, .value_dim = 32, .cache = kInt8, .values_in_keys = true},
               "engine_decode_4_heads_int8"},
           Expected{{.kv_heads = 1, .head_dim = 9, .value_dim = 7, .has_biases = true, .values_in_keys = true},
                    "engine_paged_attention"},
       }) {
    SCOPED_TRACE(kernel);
    const std::vector<float> cpu = attention.run_on({});
    const int launches = HostRuntime::instance().launches(kernel);
    expect_near(attention.run_on(kGpu), cpu, attention.dtype == kBFloat16 ? 0.012F : 2e-5F);
    if (counts()) {
      EXPECT_GT(HostRuntime::instance().launches(kernel), launches);
    }
  }
}

TEST_P(DeviceLatentAttention, a_block_takes_some_of_the_heads_if_not_all_have_room) {
  const OneAttention attention{
      .heads = 64, .kv_heads = 1, .head_dim = 576, .value_dim = 512, .has_biases = true, .values_in_keys = true};
  EXPECT_LT(gpu::tile_heads(64, 576, 512), 64);
  EXPECT_GT(gpu::tile_heads(64, 576, 512), 0);
  const OneAttention::Steps steps = {{{20, 0, 0}}, {{1, 20, 0}}};
  expect_near(attention.run_on(kGpu, steps), attention.run_on({}, steps), 1e-4F);
}

TEST_P(DeviceLatentAttention, products_with_a_matrix_for_each_head) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    OneGraph graph;
    const ValueId x = graph.input(dtype, {5, 3, 12}), heads_first = graph.input(dtype, {3, 5, 12});
    const ValueId weight = graph.weight(dtype, {3, 7, 12});
    const ValueId turned = graph.node(
        "aten.permute.default", {{"self", of(heads_first)}, {"dims", numbers({"1", "0", "2"})}}, {5, 3, 12}, dtype);
    for (const ValueId input : {x, turned}) {
      const ValueId made =
          graph.node("accord.head_linear.default", {{"input", of(input)}, {"weight", of(weight)}}, {5, 3, 7}, dtype);
      DeviceEngines::expect_same(graph.parts({made}), graph.inputs(), 8 * error_of(dtype));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceLatentAttention, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceLatentAttention, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
