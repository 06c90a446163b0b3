// Each op on a device matches the CPU's kernels within the rounding of its dtype.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <optional>

#include "unit/engine/gpu/graphs.hpp"

namespace accord::engine {
namespace {

using accord::testing::HostBlas;
using accord::testing::HostRuntime;
using accord::testing::some_numbers;

TEST_P(DeviceOps, elementwise_ops) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const std::string op : {"relu", "silu", "tanh", "sigmoid", "exp", "neg", "abs", "reciprocal", "erf", "sin",
                                 "cos", "floor", "ceil", "gelu", "log", "log1p", "sqrt", "rsqrt"}) {
      SCOPED_TRACE(op + " of " + std::string(to_string(dtype)));
      OneGraph graph;
      const ValueId x = graph.input(dtype, {3, 37});
      expect_same(graph, graph.node("aten." + op + ".default", {{"self", of(x)}}, {3, 37}, dtype), error_of(dtype));
    }
  }
}

TEST_P(DeviceOps, two_tensors_that_broadcast) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64, DType::kInt32}) {
    for (const std::string op : {"add.Tensor", "sub.Tensor", "mul.Tensor", "minimum.default", "maximum.default"}) {
      SCOPED_TRACE(op + " of " + std::string(to_string(dtype)));
      OneGraph graph;
      const ValueId a = graph.input(dtype, {4, 1, 5}), b = graph.input(dtype, {3, 1});
      expect_same(graph, graph.node("aten." + op, {{"self", of(a)}, {"other", of(b)}}, {4, 3, 5}, dtype),
                  error_of(dtype));
    }
    OneGraph graph;
    const ValueId a = graph.input(dtype, {4, 1, 5}), b = graph.input(dtype, {3, 1});
    const ValueId less = graph.node("aten.lt.Tensor", {{"self", of(a)}, {"other", of(b)}}, {4, 3, 5}, DType::kBool);
    const ValueId chosen =
        graph.node("aten.where.self", {{"condition", of(less)}, {"self", of(a)}, {"other", of(b)}}, {4, 3, 5}, dtype);
    expect_same(graph, chosen, 0.0F);
  }
}

TEST_P(DeviceOps, scalar_operands_and_powers) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    OneGraph graph;
    const ValueId x = graph.input(dtype, {2, 9});
    const ValueId scaled = graph.node("aten.mul.Scalar", {{"self", of(x)}, {"other", 1.7}}, {2, 9}, dtype);
    const ValueId clamped =
        graph.node("aten.clamp.default", {{"self", of(scaled)}, {"min", -0.5}, {"max", 1.25}}, {2, 9}, dtype);
    const ValueId cubed =
        graph.node("aten.pow.Tensor_Scalar", {{"self", of(clamped)}, {"exponent", 3.0}}, {2, 9}, dtype);
    expect_same(graph, cubed, error_of(dtype));
  }
}

TEST_P(DeviceOps, conversions) {
  for (const DType from :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt64, DType::kInt32, DType::kBool}) {
    for (const DType to :
         {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt64, DType::kInt32, DType::kBool}) {
      SCOPED_TRACE(std::string(to_string(from)) + " to " + std::string(to_string(to)));
      OneGraph graph;
      const ValueId x = graph.input(from, {23}, some_numbers(23));
      expect_same(graph, graph.node("aten._to_copy.default", {{"self", of(x)}, {"dtype", to}}, {23}, to), 0.0F);
    }
  }
}

TEST_P(DeviceOps, views_that_must_be_copied) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64, DType::kBool}) {
    OneGraph graph;
    const ValueId x = graph.input(dtype, {2, 3, 4, 5});
    const ValueId turned = graph.node("aten.permute.default",
                                      {{"self", of(x)}, {"dims", numbers({"0", "2", "1", "3"})}}, {2, 4, 3, 5}, dtype);
    const ValueId flat =
        graph.node("aten.view.default", {{"self", of(turned)}, {"size", numbers({"8", "15"})}}, {8, 15}, dtype);
    const ValueId cut = graph.node(
        "aten.slice.Tensor",
        {{"self", of(flat)}, {"dim", number(1)}, {"start", number(2)}, {"end", number(12)}, {"step", number(3)}},
        {8, 4}, dtype);
    const ValueId both = graph.node(
        "aten.cat.default", {{"tensors", std::vector<ValueRef>{{cut}, {flat}}}, {"dim", number(1)}}, {8, 19}, dtype);
    expect_same(graph, both, 0.0F);
  }
}

TEST_P(DeviceOps, reductions) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64}) {
    for (const std::string op : {"sum.dim_IntList", "amax.default", "amin.default", "mean.dim"}) {
      if (op == "mean.dim" && dtype == DType::kInt64) continue;
      SCOPED_TRACE(op + " of " + std::string(to_string(dtype)));
      OneGraph graph;
      const ValueId x = graph.input(dtype, {3, 4, 5});
      expect_same(graph, graph.node("aten." + op, {{"self", of(x)}, {"dim", numbers({"0", "2"})}}, {4}, dtype),
                  error_of(dtype));
      expect_same(
          graph,
          graph.node("aten." + op, {{"self", of(x)}, {"dim", numbers({"1"})}, {"keepdim", true}}, {3, 1, 5}, dtype),
          error_of(dtype));
    }
  }
  OneGraph graph;
  const ValueId x = graph.input(DType::kFloat32, {3, 70});
  expect_same(graph,
              graph.node("aten._softmax.default", {{"self", of(x)}, {"dim", number(1)}, {"half_to_float", false}},
                         {3, 70}, DType::kFloat32),
              kFloat32Error);
  expect_same(graph,
              graph.node("aten._log_softmax.default", {{"self", of(x)}, {"dim", number(0)}, {"half_to_float", false}},
                         {3, 70}, DType::kFloat32),
              kFloat32Error);
  expect_same(graph, graph.node("aten.cumsum.default", {{"self", of(x)}, {"dim", number(0)}}, {3, 70}, DType::kFloat32),
              kFloat32Error);
}

TEST_P(DeviceOps, norms) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(to_string(dtype));
    OneGraph graph;
    const ValueId x = graph.input(dtype, {5, 33}), residual = graph.input(dtype, {5, 33});
    const ValueId weight = graph.weight(dtype, {33}), bias = graph.weight(dtype, {33});
    const Argument width = numbers({"33"});
    const ValueId sum = graph.node("aten.add.Tensor", {{"self", of(x)}, {"other", of(residual)}}, {5, 33}, dtype);
    const ValueId rms = graph.node(
        "aten.rms_norm.default",
        {{"input", of(sum)}, {"normalized_shape", width}, {"weight", of(weight)}, {"eps", 1e-6}}, {5, 33}, dtype);
    const ValueId layer = graph.node(
        "aten.layer_norm.default",
        {{"input", of(sum)}, {"normalized_shape", width}, {"weight", of(weight)}, {"bias", of(bias)}}, {5, 33}, dtype);
    expect_same(graph, rms, error_of(dtype));
    expect_same(graph, layer, error_of(dtype));
    const ValueId both = graph.node("aten.add.Tensor", {{"self", of(layer)}, {"other", of(sum)}}, {5, 33}, dtype);
    expect_same(graph, both, 2 * error_of(dtype));
  }
}

TEST_P(DeviceOps, products_with_weights_of_few_and_many_rows) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const std::int64_t rows : {1, 2, 3, 8, 9}) {
      for (const std::int64_t inputs : {72, 37}) {
        SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(inputs) + " " + std::string(to_string(dtype)));
        const int products = HostBlas::instance().products();
        OneGraph graph;
        const ValueId x = graph.input(dtype, {rows, inputs});
        const ValueId w = graph.weight(dtype, {19, inputs}), bias = graph.weight(dtype, {19});
        const ValueId gate = graph.weight(dtype, {19, inputs});
        const ValueId y = graph.node("aten.linear.default", {{"input", of(x)}, {"weight", of(w)}, {"bias", of(bias)}},
                                     {rows, 19}, dtype);
        const float error = 8 * error_of(dtype);
        for (const std::string activation : {"gelu", "relu", "silu", "tanh"})
          expect_same(graph, graph.node("aten." + activation + ".default", {{"self", of(y)}}, {rows, 19}, dtype),
                      error);
        const ValueId gated =
            graph.node("aten.linear.default", {{"input", of(x)}, {"weight", of(gate)}}, {rows, 19}, dtype);
        const ValueId active = graph.node("aten.silu.default", {{"self", of(gated)}}, {rows, 19}, dtype);
        expect_same(graph, graph.node("aten.mul.Tensor", {{"self", of(active)}, {"other", of(y)}}, {rows, 19}, dtype),
                    2 * error);
        if (counts()) {
          EXPECT_EQ(HostBlas::instance().products() > products, rows > 8);  // few rows have their own kernel
        }
      }
    }
  }
}

TEST_P(DeviceOps, products_of_computed_matrices) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    OneGraph graph;
    const ValueId a = graph.input(dtype, {2, 3, 12}), b = graph.input(dtype, {2, 12, 7});
    expect_same(graph, graph.node("aten.bmm.default", {{"self", of(a)}, {"mat2", of(b)}}, {2, 3, 7}, dtype),
                8 * error_of(dtype));
    const ValueId c = graph.input(dtype, {2, 7, 12});
    const ValueId turned =
        graph.node("aten.permute.default", {{"self", of(c)}, {"dims", numbers({"0", "2", "1"})}}, {2, 12, 7}, dtype);
    expect_same(graph, graph.node("aten.bmm.default", {{"self", of(a)}, {"mat2", of(turned)}}, {2, 3, 7}, dtype),
                8 * error_of(dtype));
    OneGraph other;
    const ValueId x = other.input(dtype, {5, 12}), bias = other.input(dtype, {5, 7}), w = other.weight(dtype, {12, 7});
    expect_same(other, other.node("aten.mm.default", {{"self", of(x)}, {"mat2", of(w)}}, {5, 7}, dtype),
                8 * error_of(dtype));
    const ValueId row = other.weight(dtype, {7});
    for (const ValueId added : {row}) {
      expect_same(
          other,
          other.node("aten.addmm.default", {{"self", of(added)}, {"mat1", of(x)}, {"mat2", of(w)}}, {5, 7}, dtype),
          8 * error_of(dtype));
    }
    const ValueId m = other.input(dtype, {12, 7});
    expect_same(other,
                other.node("aten.addmm.default",
                           {{"self", of(bias)}, {"mat1", of(x)}, {"mat2", of(m)}, {"beta", 0.5}, {"alpha", 2.0}},
                           {5, 7}, dtype),
                8 * error_of(dtype));
  }
}

TEST_P(DeviceOps, indexing) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    OneGraph graph;
    const ValueId table = graph.weight(dtype, {11, 24});
    const ValueId ids = graph.input(DType::kInt64, {2, 3}, {0, 10, 4, 4, 7, 1});
    const ValueId rows =
        graph.node("aten.embedding.default", {{"weight", of(table)}, {"indices", of(ids)}}, {2, 3, 24}, dtype);
    expect_same(graph, rows, 0.0F);
    const ValueId list = graph.input(DType::kInt32, {4}, {2, 0, 1, 2});
    expect_same(graph,
                graph.node("aten.index_select.default", {{"self", of(rows)}, {"dim", number(1)}, {"index", of(list)}},
                           {2, 4, 24}, dtype),
                0.0F);
    const ValueId places = graph.input(DType::kInt64, {2, 3, 2}, {1, 20, 3, 4, 0, 23, 5, 6, 7, 8, 9, 10});
    expect_same(graph,
                graph.node("aten.gather.default", {{"self", of(rows)}, {"dim", number(2)}, {"index", of(places)}},
                           {2, 3, 2}, dtype),
                0.0F);
  }
}

TEST_P(DeviceOps, top_k_of_rows) {
  const float nan = std::nanf("");
  const std::vector<float> values = {3, 1, 3, -2, 0, -0.0F, 3, nan, -8, nan, 2, -1, 5, 5, 5, 5, 5, 5, 5, 5, 5};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool largest : {true, false}) {
      for (const std::int64_t k : {1, 3, 7}) {
        SCOPED_TRACE(std::to_string(k) + " of " + std::string(to_string(dtype)));
        OneGraph graph;
        const ValueId x = graph.input(dtype, {3, 7}, values);
        const ValueId best =
            graph.node("aten.topk.default", {{"self", of(x)}, {"k", number(k)}, {"largest", largest}}, {3, k}, dtype);
        const ValueId places = graph.writer().more_output(symbolic({3, k}), DType::kInt64);
        expect_same(graph, {best, places}, 0.0F);
      }
    }
  }
}

TEST_P(DeviceOps, attention_of_whole_sequences) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool causal : {false, true}) {
      OneGraph graph;
      const ValueId q = graph.input(dtype, {2, 4, 21, 8}), k = graph.input(dtype, {2, 2, 21, 8}),
                    v = graph.input(dtype, {2, 2, 21, 6});
      expect_same(
          graph,
          graph.node("aten.scaled_dot_product_attention.default",
                     {{"query", of(q)}, {"key", of(k)}, {"value", of(v)}, {"is_causal", causal}, {"enable_gqa", true}},
                     {2, 4, 21, 6}, dtype),
          error_of(dtype));
      const ValueId mask =
          graph.input(DType::kBool, {2, 1, 1, 21},
                      std::vector<float>{1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0,
                                         0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
      expect_same(
          graph,
          graph.node(
              "aten.scaled_dot_product_attention.default",
              {{"query", of(q)}, {"key", of(k)}, {"value", of(v)}, {"attn_mask", of(mask)}, {"enable_gqa", true}},
              {2, 4, 21, 6}, dtype),
          error_of(dtype));
    }
  }
}

TEST_P(DeviceOps, attention_of_whole_sequences_on_tensor_cores) {
  struct Case {
    Shapes q, k;
    std::int64_t value_dim;
    DType dtype;
    std::string kernel;
    std::optional<DType> mask = {};
    bool causal = false;
  };
  for (const Case& each : {
           Case{{2, 4, 37, 32}, {2, 2, 70, 32}, 16, DType::kBFloat16, "engine_whole_low_tiles_64_bfloat16", {}},
           Case{{1, 2, 70, 64}, {1, 2, 70, 64}, 64, DType::kFloat16, "engine_whole_low_tiles_64_float16", {}, true},
           Case{{1, 3, 70, 80}, {1, 1, 41, 80}, 80, DType::kBFloat16, "engine_whole_low_tiles_128_bfloat16", {}, true},
           Case{{1, 1, 40, 128},
                {1, 1, 9, 128},
                128,
                DType::kFloat16,
                "engine_whole_low_tiles_128_float16",
                DType::kBool},
           Case{{2, 1, 20, 16},
                {2, 1, 65, 16},
                192,
                DType::kBFloat16,
                "engine_whole_low_tiles_256_bfloat16",
                DType::kBool},
           Case{{1, 1, 9, 160},
                {1, 1, 33, 160},
                32,
                DType::kFloat16,
                "engine_whole_low_tiles_256_float16",
                DType::kFloat32},
           Case{{2, 4, 9, 16},
                {2, 2, 70, 16},
                16,
                DType::kBFloat16,
                "engine_whole_low_tiles_64_bfloat16",
                DType::kBFloat16},
           Case{{16, 4, 66, 32}, {16, 2, 20, 32}, 32, DType::kBFloat16, "engine_whole_tiles_64_bfloat16", {}},
           Case{{33, 2, 65, 64}, {33, 2, 65, 64}, 16, DType::kFloat16, "engine_whole_tiles_64_float16", {}, true},
           Case{{16, 4, 66, 96}, {16, 2, 20, 96}, 16, DType::kBFloat16, "engine_whole_tiles_128_bfloat16", {}},
           Case{{33, 2, 65, 80}, {33, 1, 65, 80}, 96, DType::kFloat16, "engine_whole_tiles_128_float16", {}, true},
           Case{{1, 2, 9, 16}, {1, 2, 30, 16}, 16, DType::kFloat32, "engine_whole_attention", {}},
           Case{{1, 2, 9, 24}, {1, 2, 30, 24}, 16, DType::kBFloat16, "engine_whole_attention", {}},
       }) {
    SCOPED_TRACE(each.kernel);
    OneGraph graph;
    Shapes v = each.k, output = each.q;
    v.back() = output.back() = each.value_dim;
    Arguments arguments = {{"query", of(graph.input(each.dtype, each.q))},
                           {"key", of(graph.input(each.dtype, each.k))},
                           {"value", of(graph.input(each.dtype, v))},
                           {"is_causal", each.causal},
                           {"enable_gqa", true}};
    if (each.mask) {
      const Shapes sizes = {each.q[0], 1, each.q[2], each.k[2]};
      std::vector<float> mask = some_numbers(count_of(sizes), 9);
      for (std::size_t i = 0; i < mask.size(); ++i) {
        const bool is_hidden = i % 3 == 0 || i < static_cast<std::size_t>(each.k[2]);  // the first query sees nothing
        if (*each.mask == DType::kBool) mask[i] = is_hidden ? 0.0F : 1.0F;
        if (*each.mask != DType::kBool && is_hidden) mask[i] = -INFINITY;
      }
      arguments.emplace("attn_mask", of(graph.input(*each.mask, sizes, mask)));
    }
    const int before = HostRuntime::instance().launches(each.kernel);
    expect_same(graph, graph.node("aten.scaled_dot_product_attention.default", arguments, output, each.dtype),
                error_of(each.dtype));
    EXPECT_TRUE(!counts() || HostRuntime::instance().launches(each.kernel) > before);
  }
}

// As models are exported: a whole piece of keys that no query sees, and a query that sees nothing, whose result is
// the mean.
TEST_P(DeviceOps, attention_masks_may_be_the_lowest_number_instead_of_infinity) {
  for (const float lowest : {-3.3895314e38F, std::numeric_limits<float>::lowest()}) {
    OneGraph graph;
    const DType mask_dtype = lowest == std::numeric_limits<float>::lowest() ? DType::kFloat32 : DType::kBFloat16;
    std::vector<float> mask(9 * 70, 0.0F);
    for (std::size_t i = 0; i < mask.size(); ++i)
      if (i < 70 || i % 70 < 64) mask[i] = lowest;
    const Arguments arguments = {{"query", of(graph.input(DType::kBFloat16, {1, 1, 9, 16}))},
                                 {"key", of(graph.input(DType::kBFloat16, {1, 1, 70, 16}))},
                                 {"value", of(graph.input(DType::kBFloat16, {1, 1, 70, 16}))},
                                 {"attn_mask", of(graph.input(mask_dtype, {1, 1, 9, 70}, mask))}};
    const int before = HostRuntime::instance().launches("engine_whole_low_tiles_64_bfloat16");
    expect_same(graph,
                graph.node("aten.scaled_dot_product_attention.default", arguments, {1, 1, 9, 16}, DType::kBFloat16),
                error_of(DType::kBFloat16));
    EXPECT_TRUE(!counts() || HostRuntime::instance().launches("engine_whole_low_tiles_64_bfloat16") > before);
  }
}

TEST_P(DeviceOps, values_that_depend_on_no_input_are_folded_and_copied_to_the_device) {
  OneGraph graph;
  const ValueId x = graph.input(DType::kFloat32, {2, 6});
  const ValueId weight = graph.weight(DType::kFloat32, {6});
  const ValueId counted =
      graph.node("aten.arange.start_step", {{"start", number(0)}, {"end", number(6)}}, {6}, DType::kFloat32);
  const ValueId root = graph.node("aten.cos.default", {{"self", of(counted)}}, {6}, DType::kFloat32);
  const ValueId scaled =
      graph.node("aten.mul.Tensor", {{"self", of(root)}, {"other", of(weight)}}, {6}, DType::kFloat32);
  expect_same(graph, graph.node("aten.add.Tensor", {{"self", of(x)}, {"other", of(scaled)}}, {2, 6}, DType::kFloat32),
              kFloat32Error);
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceOps, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceOps, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
