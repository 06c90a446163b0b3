// Elementwise ops whose operands consist of Words have their own kernels, with the results of the general one.
#include <gmock/gmock.h>

#include "unit/engine/gpu/graphs.hpp"

namespace accord::engine {
namespace {

using accord::testing::HostRuntime;

class DeviceWords : public DeviceOps {
 protected:
  /// Returns how often kernels for Words have been launched.
  static int launches() {
    int all = 0;
    for (const auto& [kernel, count] : HostRuntime::instance().launches())
      if (kernel.find("_words") != std::string::npos) all += count;
    return all;
  }
  /// Expects that the graph's results match the CPU's, and that kernels for Words compute some of it, or none.
  void expect_by_words(OneGraph& graph, ValueId output, float tolerance, bool by_words = true) {
    const int before = launches();
    expect_same(graph, output, tolerance);
    if (counts()) {
      EXPECT_EQ(launches() > before, by_words);
    }
  }
};

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

TEST_P(DeviceWords, unary_ops) {
  for (const DType dtype : kFloats) {
    for (const std::string op : {"relu", "silu", "tanh", "sigmoid", "exp", "neg", "abs", "reciprocal", "gelu"}) {
      SCOPED_TRACE(op + " of " + std::string(to_string(dtype)));
      OneGraph graph;
      const ValueId x = graph.input(dtype, {3, 40});
      expect_by_words(graph, graph.node("aten." + op + ".default", {{"self", of(x)}}, {3, 40}, dtype), error_of(dtype));
    }
    OneGraph graph;
    const ValueId x = graph.node("aten.abs.default", {{"self", of(graph.input(dtype, {2, 16}))}}, {2, 16}, dtype);
    const ValueId root = graph.node("aten.sqrt.default", {{"self", of(x)}}, {2, 16}, dtype);
    const ValueId more = graph.node("aten.add.Scalar", {{"self", of(root)}, {"other", 0.5}}, {2, 16}, dtype);
    expect_by_words(graph, graph.node("aten.rsqrt.default", {{"self", of(more)}}, {2, 16}, dtype), 2 * error_of(dtype));
  }
}

// Whole tensors, rows, columns and numbers, in either place.
TEST_P(DeviceWords, operands_that_broadcast) {
  const Shapes shapes[] = {{4, 6, 40}, {6, 40}, {40}, {4, 1, 40}, {4, 6, 1}, {6, 1}, {1}};
  for (const DType dtype : kFloats) {
    for (const std::string op : {"add", "sub", "mul", "div", "minimum", "maximum"}) {
      const std::string name = "aten." + op + (op.size() == 3 ? ".Tensor" : ".default");
      for (const Shapes& shape : shapes) {
        SCOPED_TRACE(op + " of " + std::string(to_string(dtype)) + ", " + std::to_string(shape.size()) + " dimensions");
        OneGraph graph;
        const ValueId a = graph.input(dtype, {4, 6, 40});
        const ValueId b = graph.node("aten.exp.default", {{"self", of(graph.input(dtype, shape))}}, shape, dtype);
        expect_by_words(graph, graph.node(name, {{"self", of(a)}, {"other", of(b)}}, {4, 6, 40}, dtype),
                        2 * error_of(dtype));
        expect_by_words(graph, graph.node(name, {{"self", of(b)}, {"other", of(a)}}, {4, 6, 40}, dtype),
                        2 * error_of(dtype));
      }
    }
  }
}

TEST_P(DeviceWords, numbers_and_limits) {
  for (const DType dtype : kFloats) {
    OneGraph graph;
    const ValueId x = graph.input(dtype, {2, 32});
    const ValueId scaled = graph.node("aten.mul.Scalar", {{"self", of(x)}, {"other", 1.7}}, {2, 32}, dtype);
    expect_by_words(
        graph, graph.node("aten.clamp.default", {{"self", of(scaled)}, {"min", -0.5}, {"max", 1.25}}, {2, 32}, dtype),
        error_of(dtype));
  }
}

// Columns of a matrix: at a word, and between words.
TEST_P(DeviceWords, rows_with_gaps) {
  for (const DType dtype : kFloats) {
    for (const std::int64_t first : {8, 3}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " from " + std::to_string(first));
      OneGraph graph;
      const ValueId x = graph.input(dtype, {6, 40});
      const ValueId part = graph.node(
          "aten.slice.Tensor",
          {{"self", of(x)}, {"dim", number(1)}, {"start", number(first)}, {"end", number(first + 24)}}, {6, 24}, dtype);
      expect_by_words(graph, graph.node("aten.silu.default", {{"self", of(part)}}, {6, 24}, dtype), error_of(dtype),
                      first == 8);
      expect_by_words(graph, part, 0.0F, first == 8);  // outputs are copied from views
    }
  }
}

TEST_P(DeviceWords, copies_of_any_dtype) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt64, DType::kInt32, DType::kBool}) {
    SCOPED_TRACE(to_string(dtype));
    OneGraph graph;
    const ValueId x = graph.input(dtype, {2, 3, 5, 16});
    const ValueId turned = graph.node("aten.permute.default",
                                      {{"self", of(x)}, {"dims", numbers({"0", "2", "1", "3"})}}, {2, 5, 3, 16}, dtype);
    const ValueId flat =
        graph.node("aten.view.default", {{"self", of(turned)}, {"size", numbers({"10", "48"})}}, {10, 48}, dtype);
    const ValueId half = graph.node(
        "aten.slice.Tensor", {{"self", of(flat)}, {"dim", number(1)}, {"start", number(16)}, {"end", number(32)}},
        {10, 16}, dtype);
    expect_by_words(
        graph,
        graph.node("aten.cat.default", {{"tensors", std::vector<ValueRef>{{half}, {flat}}}, {"dim", number(1)}},
                   {10, 64}, dtype),
        0.0F);
  }
}

TEST_P(DeviceWords, rows_that_are_not_words_have_the_general_kernel) {
  OneGraph graph;
  const ValueId x = graph.input(DType::kBFloat16, {3, 12}), whole = graph.input(DType::kInt32, {3, 16});
  expect_by_words(graph, graph.node("aten.neg.default", {{"self", of(x)}}, {3, 12}, DType::kBFloat16), 0.0F, false);
  expect_by_words(graph, graph.node("aten.neg.default", {{"self", of(whole)}}, {3, 16}, DType::kInt32), 0.0F, false);
  expect_by_words(
      graph,
      graph.node("aten._to_copy.default", {{"self", of(x)}, {"dtype", DType::kFloat32}}, {3, 12}, DType::kFloat32),
      0.0F, false);
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceWords, accord::testing::kHostMemory);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceWords, accord::testing::kGpus);

}  // namespace
}  // namespace accord::engine
