// Products of one input that become one node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/passes/passes.hpp"
#include "unit/engine/graph/graph_writer.hpp"

namespace accord::engine {
namespace {

using ::testing::ElementsAre;

/// silu(x * gate) * (x * up), as transformers writes it, after fuse_linear_activation.
struct Gated {
  explicit Gated(bool gate_first = true, bool same_input = true) {
    const SymbolicShape rows = shape_of({"2", "4"}), wide = shape_of({"2", "6"}), weights = shape_of({"6", "4"});
    x = writer.input("x", rows);
    const ValueId other = writer.input("other", rows);
    gate_weight = writer.parameter("gate", weights);
    up_weight = writer.parameter("up", weights);
    bias = writer.parameter("bias", shape_of({"6"}));
    gate = writer.node(
        "accord.linear",
        {{"input", of(x)}, {"weight", of(gate_weight)}, {"bias", of(bias)}, {"activation", text("silu")}}, wide);
    up = writer.node("aten.linear.default", {{"input", of(same_input ? x : other)}, {"weight", of(up_weight)}}, wide);
    product = writer.node("aten.mul.Tensor",
                          {{"self", of(gate_first ? gate : up)}, {"other", of(gate_first ? up : gate)}}, wide);
    writer.output(product);
  }
  GraphWriter writer;
  ValueId x, gate_weight, up_weight, bias, gate, up, product;
};

TEST(FuseGatedLinear, a_product_and_its_gate_become_one_node_in_either_order) {
  for (const bool gate_first : {true, false}) {
    const Gated before(gate_first);
    const Graph after = remove_dead_nodes(fuse_gated_linear(before.writer.graph()));
    ASSERT_THAT(ops_of(after), ElementsAre("accord.gated_linear"));
    EXPECT_EQ(after.nodes[0].arguments, (Arguments{{"input", of(before.x)},
                                                   {"weight", of(before.up_weight)},
                                                   {"gate", of(before.gate_weight)},
                                                   {"gate_bias", of(before.bias)},
                                                   {"activation", text("silu")}}));
    EXPECT_THAT(after.nodes[0].outputs, ElementsAre(before.product));
    EXPECT_EQ(after.nodes[0].module, "layer0, layer1");
  }
}

TEST(FuseGatedLinear, a_factor_with_other_users_or_another_input_is_not_fused) {
  Gated shown;
  shown.writer.output(shown.gate);
  EXPECT_EQ(fuse_gated_linear(shown.writer.graph()).nodes[2].op, "aten.mul.Tensor");
  EXPECT_EQ(fuse_gated_linear(Gated(true, false).writer.graph()).nodes[2].op, "aten.mul.Tensor");
}

/// Linear layers of x. A name with "@" has no bias; "-" stands for a product of another input.
struct LinearLayers {
  explicit LinearLayers(std::initializer_list<std::string> names) {
    const SymbolicShape rows = shape_of({"2", "4"});
    x = writer.input("x", rows);
    const ValueId other = writer.input("other", rows);
    for (const std::string& name : names) {
      const std::string out = name == "q" ? "6" : "3";
      weights.push_back(writer.parameter(name, shape_of({out, "4"})));
      Arguments arguments = {{"input", of(name == "-" ? other : x)}, {"weight", of(weights.back())}};
      biases.push_back(name.ends_with("@") ? -1 : writer.parameter(name + ".bias", shape_of({out})));
      if (biases.back() >= 0) arguments["bias"] = of(biases.back());
      outputs.push_back(writer.node("aten.linear.default", arguments, shape_of({"2", out})));
      writer.output(writer.node("aten.neg.default", {{"self", of(outputs.back())}}, shape_of({"2", out})));
    }
  }
  GraphWriter writer;
  ValueId x;
  std::vector<ValueId> weights, biases, outputs;
};

TEST(FuseLinears, layers_of_one_input_become_one_node_where_the_first_stood) {
  const LinearLayers before({"q", "k@", "v"});
  const Graph after = fuse_linears(before.writer.graph());
  ASSERT_THAT(ops_of(after), ElementsAre("accord.linears", "aten.neg.default", "aten.neg.default", "aten.neg.default"));
  const Node& node = after.nodes[0];
  const auto refs = [](const std::vector<ValueId>& ids) {
    std::vector<ValueRef> all;
    for (const ValueId id : ids) all.push_back({id});
    return Argument(all);
  };
  EXPECT_EQ(node.arguments,
            (Arguments{{"input", of(before.x)}, {"weights", refs(before.weights)}, {"biases", refs(before.biases)}}));
  EXPECT_EQ(node.outputs, before.outputs);
  EXPECT_EQ(node.module, "layer0, layer2, layer4");
}

TEST(FuseLinears, a_single_layer_and_layers_after_another_product_are_not_fused) {
  const Graph graph = LinearLayers({"q"}).writer.graph();
  EXPECT_EQ(ops_of(fuse_linears(graph)), ops_of(graph));
  const LinearLayers apart({"q", "k", "-", "v"});
  EXPECT_THAT(ops_of(fuse_linears(apart.writer.graph())),
              ElementsAre("accord.linears", "aten.neg.default", "aten.neg.default", "aten.linear.default",
                          "aten.neg.default", "aten.linear.default", "aten.neg.default"));
}

TEST(SplitAdapters, a_layer_becomes_a_linear_and_what_is_added_to_it) {
  GraphWriter writer;
  const ValueId x = writer.input("x", shape_of({"2", "4"})), adapters = writer.input("adapters", shape_of({"2"}));
  std::vector<ValueId> outputs, downs;
  for (const std::string name : {"q", "k"}) {
    const ValueId weight = writer.parameter(name, shape_of({"3", "4"})),
                  bias = writer.parameter(name + "b", shape_of({"3"}));
    downs.push_back(writer.parameter(name + "d", shape_of({"5", "2", "4"})));
    const ValueId up = writer.parameter(name + "u", shape_of({"5", "3", "2"}));
    outputs.push_back(writer.node("accord.adapted_linear.default",
                                  {{"input", of(x)},
                                   {"weight", of(weight)},
                                   {"bias", of(bias)},
                                   {"down", of(downs.back())},
                                   {"up", of(up)},
                                   {"adapters", of(adapters)}},
                                  shape_of({"2", "3"})));
    writer.output(outputs.back());
  }
  const Graph after = fuse_linears(split_adapters(writer.graph()));
  ASSERT_THAT(ops_of(after), ElementsAre("accord.linears", "accord.adapters", "accord.adapters"));
  const Node& second = after.nodes[2];
  EXPECT_THAT(second.outputs, ElementsAre(outputs[1]));
  EXPECT_EQ(second.arguments.at("base"), of(after.nodes[0].outputs[1]));
  EXPECT_EQ(second.arguments.at("input"), of(x));
  EXPECT_EQ(second.arguments.at("down"), of(downs[1]));
  EXPECT_EQ(second.arguments.at("adapters"), of(adapters));
  EXPECT_EQ(second.arguments.size(), 5U);
  EXPECT_EQ(second.module, "layer1");
}

TEST(FuseLinears, computed_weights_and_products_in_pieces_are_not_fused) {
  GraphWriter writer;
  const ValueId x = writer.input("x", shape_of({"2", "4"}));
  const ValueId computed = writer.input("w", shape_of({"3", "4"}));
  const ValueId weight = writer.parameter("v", shape_of({"3", "4"}));
  for (int i = 0; i < 2; ++i) {
    writer.output(
        writer.node("aten.linear.default", {{"input", of(x)}, {"weight", of(computed)}}, shape_of({"2", "3"})));
  }
  for (int i = 0; i < 2; ++i) {
    writer.output(writer.node("aten.linear.default", {{"input", of(x)}, {"weight", of(weight)}, {"pieces", number(2)}},
                              shape_of({"2", "3"})));
  }
  EXPECT_EQ(ops_of(fuse_linears(writer.graph())), ops_of(writer.graph()));
}

}  // namespace
}  // namespace accord::engine
