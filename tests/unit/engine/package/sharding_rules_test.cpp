// Rules by name pattern: the layers that they match, the tensors that they shard, and manifests that contradict them.

#include "engine/package/sharding_rules.hpp"

#include <gmock/gmock.h>

#include "accord/package.hpp"
#include "engine/graph/ops.hpp"
#include "package_fixture.hpp"
#include "unit/engine/graph/graph_writer.hpp"

namespace accord::engine {
namespace {

using ::testing::HasSubstr;

TEST(Patterns, a_star_matches_any_run_of_characters) {
  struct Case {
    const char* pattern;
    const char* name;
    bool expected;
  };
  const Case cases[] = {
      {"up", "up", true},
      {"up", "ups", false},
      {"up", "u", false},
      {"", "", true},
      {"*", "", true},
      {"*", "layers.0.up", true},
      {"*.up", "layers.0.up", true},
      {"*.up", "up", false},
      {"*up", "up", true},
      {"layers.*.up", "layers.0.up", true},
      {"layers.*.up", "layers.0.mlp.up", true},
      {"layers.*.up", "layers.up", false},
      {"layers.*.up", "layers.0.upper", false},
      {"layers.*", "layers.", true},
      {"a*b*c", "abbbc", true},
      {"a*b*c", "acb", false},
      {"*a*a*", "banana", true},
      {"*ab", "aab", true},
      {"*abc", "ababc", true},
      {"layers.?", "layers.0", false},
      {"layers.[01]", "layers.0", false},
      {"a**b", "ab", true},
  };
  for (const Case& c : cases) EXPECT_EQ(matches(c.pattern, c.name), c.expected) << c.pattern << " and " << c.name;
}

// Three linear layers with biases, of 8 features each, in their own modules.
class ShardingRules : public ::testing::Test {
 protected:
  ShardingRules() {
    add("block.0.up");
    add("block.0.down");
    add("head");
    graph_.outputs = {layer_output_};
  }

  void add(const std::string& module) {
    const auto value = [&](const std::string& name, const SymbolicShape& shape) {
      graph_.values.push_back({name, DType::kFloat32, shape});
      return static_cast<ValueId>(graph_.values.size() - 1);
    };
    const ValueId input = layer_output_ >= 0 ? layer_output_ : value("x", shape_of({"2", "8"}));
    if (layer_output_ < 0) graph_.inputs = {input};
    const ValueId weight = value(module + ".w", shape_of({"8", "8"}));
    const ValueId bias = value(module + ".b", shape_of({"8"}));
    graph_.parameters.push_back({weight, module + ".weight"});
    graph_.parameters.push_back({bias, module + ".bias"});
    layer_output_ = value(module + ".y", shape_of({"2", "8"}));
    graph_.nodes.push_back({"aten.linear.default",
                            {{"input", of(input)}, {"weight", of(weight)}, {"bias", of(bias)}},
                            {layer_output_},
                            module,
                            "model.py:1"});
  }

  // Returns the sharding that the rules give to each tensor that they divide.
  Result<std::map<std::string, Sharding>> apply(const std::vector<ShardingRule>& rules) const {
    Manifest manifest;
    manifest.rules = rules;
    ACCORD_ASSIGN_OR_RETURN(const auto decisions, apply_rules(std::span(&graph_, 1), manifest));
    std::map<std::string, Sharding> divided;
    for (const auto& [tensor, decision] : decisions) {
      if (decision.sharding) divided[tensor] = *decision.sharding;
    }
    return divided;
  }

  Status check(const std::vector<ShardingRule>& rules, const std::map<std::string, Sharding>& shardings) const {
    Manifest manifest = manifest_of(graph_, shardings);
    manifest.rules = rules;
    return check_sharding(std::span(&graph_, 1), manifest);
  }

  Graph graph_;
  ValueId layer_output_ = -1;
};

constexpr auto kColumn = ParallelStyle::kColumn;
constexpr auto kRow = ParallelStyle::kRow;

TEST_F(ShardingRules, column_shards_weight_and_bias_by_outputs_and_row_shards_the_weight_by_inputs) {
  const auto divided = apply({{"block.*.up", kColumn, 4, "tp"}, {"block.*.down", kRow, 2, "tp"}});
  ASSERT_TRUE(divided.ok()) << divided.status().to_string();
  EXPECT_EQ(*divided, (std::map<std::string, Sharding>{{"block.0.up.weight", {"tp", 0, 4}},
                                                       {"block.0.up.bias", {"tp", 0, 4}},
                                                       {"block.0.down.weight", {"tp", 1, 2}}}));
}

TEST_F(ShardingRules, adapters_are_divided_as_the_weight_of_their_layer_is) {
  for (Node& layer : graph_.nodes) {
    layer.op = kAdaptedLinear;
    for (const std::string name : {"down", "up"}) {
      graph_.values.push_back({layer.module + "." + name, DType::kFloat32, shape_of({"3", "8", "8"})});
      const auto value = static_cast<ValueId>(graph_.values.size() - 1);
      graph_.parameters.push_back({value, layer.module + "." + name});
      layer.arguments[name] = of(value);
    }
  }
  const auto divided = apply({{"block.*.up", kColumn, 4, "tp"}, {"block.*.down", kRow, 2, "tp"}});
  ASSERT_TRUE(divided.ok()) << divided.status().to_string();
  EXPECT_EQ(*divided, (std::map<std::string, Sharding>{{"block.0.up.weight", {"tp", 0, 4}},
                                                       {"block.0.up.bias", {"tp", 0, 4}},
                                                       {"block.0.up.up", {"tp", 1, 4}},
                                                       {"block.0.down.weight", {"tp", 1, 2}},
                                                       {"block.0.down.down", {"tp", 2, 2}}}));
}

TEST_F(ShardingRules, the_first_rule_that_matches_decides) {
  const auto divided = apply({{"block.0.up", kColumn, 8, "tp"}, {"*", kRow, 1, "ep"}});
  ASSERT_TRUE(divided.ok()) << divided.status().to_string();
  EXPECT_EQ(*divided, (std::map<std::string, Sharding>{{"block.0.up.weight", {"tp", 0, 8}},
                                                       {"block.0.up.bias", {"tp", 0, 8}},
                                                       {"block.0.down.weight", {"ep", 1, 1}},
                                                       {"head.weight", {"ep", 1, 1}}}));
}

TEST_F(ShardingRules, matrices_of_heads_are_divided_head_by_head) {
  Node& head = graph_.nodes.back();
  head.op = "accord.head_linear.default";
  head.arguments.erase("bias");
  const auto divided = apply({{"head", kColumn, 1, "tp"}});
  ASSERT_TRUE(divided.ok()) << divided.status().to_string();
  EXPECT_EQ(*divided, (std::map<std::string, Sharding>{{"head.weight", {"tp", 0, 1}}}));
  EXPECT_THAT(apply({{"head", kRow, 1, "tp"}}).status().message(),
              HasSubstr("rule \"head\" is a row rule, but \"head\" has a matrix for each head"));
}

TEST_F(ShardingRules, a_rule_that_applies_to_no_layer_is_rejected) {
  const auto message = [&](const std::vector<ShardingRule>& rules) { return apply(rules).status().message(); };
  EXPECT_EQ(apply({{"tail", kRow, 1, "tp"}}).status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(message({{"head", kRow, 1, "tp"}, {"haed", kColumn, 1, "tp"}}),
              HasSubstr("manifest.json: rule 1 (\"haed\") matches no linear layer, embedding or layer of experts; did "
                        "you mean \"head\"?"));
  EXPECT_THAT(message({{"block.*", kRow, 1, "tp"}, {"*.up", kColumn, 1, "tp"}}),
              HasSubstr("rule 1 (\"*.up\"): an earlier rule decides all that it matches, such as \"block.0.up\""));
}

TEST_F(ShardingRules, layers_that_share_a_weight_must_share_its_sharding) {
  graph_.nodes[2].arguments["weight"] = graph_.nodes[0].arguments["weight"];
  EXPECT_THAT(apply({{"block.0.up", kColumn, 4, "tp"}}).status().message(),
              HasSubstr("tensor \"block.0.up.weight\" is shared by modules \"block.0.up\" and \"head\", to which the "
                        "rules give dimension 0 in units of 4 over group \"tp\" and no sharding"));
  EXPECT_TRUE(apply({{"block.0.up", kColumn, 4, "tp"}, {"head", kColumn, 4, "tp"}}).ok());
}

TEST_F(ShardingRules, a_manifest_with_different_sharding_is_rejected_with_tensor_and_rule) {
  const std::vector<ShardingRule> rules = {{"*.up", kColumn, 4, "tp"}, {"*.down", kRow, 4, "tp"}};
  const std::map<std::string, Sharding> right = {
      {"block.0.up.weight", {"tp", 0, 4}}, {"block.0.up.bias", {"tp", 0, 4}}, {"block.0.down.weight", {"tp", 1, 4}}};
  EXPECT_TRUE(check(rules, right).ok()) << check(rules, right).to_string();
  const auto refused = [&](std::map<std::string, Sharding> shardings, const std::string& message) {
    const Status status = check(rules, shardings);
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr(message));
  };
  auto wrong = right;
  wrong["block.0.up.weight"].unit = 2;
  refused(wrong,
          "manifest.json: tensor \"block.0.up.weight\" has dimension 0 in units of 2 over group \"tp\", but rule "
          "\"*.up\" gives dimension 0 in units of 4 over group \"tp\" by module \"block.0.up\"");
  wrong = right;
  wrong["block.0.down.weight"].dim = 0;
  refused(wrong, "rule \"*.down\" gives dimension 1");
  wrong = right;
  wrong["block.0.down.weight"].group = "ep";
  refused(wrong, "over group \"ep\", but rule \"*.down\"");
  wrong = right;
  wrong.erase("block.0.up.bias");
  refused(wrong, "tensor \"block.0.up.bias\" has no sharding, but rule \"*.up\"");
  wrong = right;
  wrong["block.0.down.bias"] = {"tp", 0, 4};
  refused(wrong,
          "tensor \"block.0.down.bias\" has dimension 0 in units of 4 over group \"tp\", but rule \"*.down\" gives "
          "no sharding");
  wrong = right;
  wrong["head.weight"] = {"tp", 0, 4};
  refused(wrong, "tensor \"head.weight\" has dimension 0 in units of 4 over group \"tp\", but no rule divides it");
}

class PackagesWithRules : public PackageFixture {};

TEST_F(PackagesWithRules, with_contradicting_rules_are_rejected_when_opened_and_when_verified) {
  manifest_["rules"][0]["style"] = "column";
  seal();
  const Status status = Package::open(path_).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("\"layers.*\" gives dimension 0 in units of 2"));
  const auto damages = verify_package(path_);
  ASSERT_TRUE(damages.ok());
  ASSERT_EQ(damages->size(), 1U);
  EXPECT_EQ((*damages)[0].file, "manifest.json");
  manifest_["rules"][0]["style"] = "row";
  manifest_["rules"][0]["pattern"] = "layer.*";
  seal();
  EXPECT_THAT(Package::open(path_).status().message(), HasSubstr("rule 0 (\"layer.*\") matches no linear layer"));
}

}  // namespace
}  // namespace accord::engine
