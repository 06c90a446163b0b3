// graph.json: accepted and rejected contents, and the table of ops.

#include "unit/engine/graph/graph_json.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/graph/graph.hpp"
#include "engine/graph/ops.hpp"

namespace accord::engine {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Two nodes that use every form of argument.
json small_graph() {
  return json::parse(R"({
    "symbols": [{"name": "batch", "min": 1, "max": 64}, {"name": "length", "min": 1, "max": 512}],
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", "length"]}],
    "parameters": [{"name": "p", "dtype": "bfloat16", "shape": [4, 6], "tensor": "layer.weight"}],
    "nodes": [
      {"op": "test.first", "module": "a.b", "source": "m.py:1",
       "arguments": {"none": null, "value": {"value": "x"}, "size": {"symbolic": "batch*2 + 1"}, "number": 3,
                     "real": 0.5,
                     "huge": {"float": "inf"}, "flag": true, "text": "tanh", "dtype": {"dtype": "bool"},
                     "sizes": [1, "length", -1], "values": {"values": ["x", null, "p"]}},
       "outputs": [{"name": "y", "dtype": "int64", "shape": ["2*batch + 1"]},
                   {"name": "z", "dtype": "bool", "shape": []}]},
      {"op": "test.second", "module": "", "source": "", "arguments": {"self": {"value": "y"}},
       "outputs": [{"name": "w", "dtype": "int64", "shape": [3]}]}],
    "outputs": ["w", "z"]})");
}

TEST(GraphJson, every_kind_of_argument_is_read) {
  const auto graph = parse_graph(small_graph().dump());
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  ASSERT_EQ(graph->nodes.size(), 2u);
  const auto& node = graph->nodes[0];
  EXPECT_EQ(node.module, "a.b");
  EXPECT_EQ(node.source, "m.py:1");
  const auto& arguments = node.arguments;
  EXPECT_EQ(arguments.at("none"), Argument(None{}));
  EXPECT_EQ(arguments.at("value"), Argument(ValueRef{graph->inputs[0]}));
  EXPECT_EQ(arguments.at("size"), Argument(*SymbolicInt::parse("1 + 2*batch")));
  EXPECT_EQ(arguments.at("number"), Argument(SymbolicInt(3)));
  EXPECT_EQ(arguments.at("real"), Argument(0.5));
  EXPECT_TRUE(std::isinf(std::get<double>(arguments.at("huge"))));
  EXPECT_EQ(arguments.at("flag"), Argument(true));
  EXPECT_EQ(arguments.at("text"), Argument(std::string("tanh")));
  EXPECT_EQ(arguments.at("dtype"), Argument(DType::kBool));
  EXPECT_EQ(arguments.at("sizes"),
            Argument(std::vector<SymbolicInt>{SymbolicInt(1), *SymbolicInt::parse("length"), SymbolicInt(-1)}));
  EXPECT_EQ(arguments.at("values"), Argument(std::vector<ValueRef>{ValueRef{graph->inputs[0]}, ValueRef{},
                                                                   ValueRef{graph->parameters[0].value}}));
  EXPECT_EQ(graph->parameters[0].tensor, "layer.weight");
  EXPECT_EQ(graph->values[static_cast<std::size_t>(graph->outputs[0])].name, "w");
  EXPECT_TRUE(graph->values[static_cast<std::size_t>(graph->outputs[1])].shape.empty());
}

TEST(GraphJson, a_graph_that_is_written_reads_back_the_same) {
  const auto graph = parse_graph(small_graph().dump());
  ASSERT_TRUE(graph.ok());
  const auto written = json::parse(to_json(*graph));
  auto expected = small_graph();
  expected["nodes"][0]["arguments"]["size"]["symbolic"] = "2*batch + 1";  // in canonical form
  EXPECT_EQ(written, expected);
}

struct GraphFault {
  const char* name;
  std::function<void(json&)> apply;
  const char* message;
};

TEST(GraphJson, false_contents_are_rejected_with_their_location) {
  const std::vector<GraphFault> faults = {
      {"unknown key", [](json& g) { g["node"] = 1; }, "graph.json: unknown key \"node\"; did you mean \"nodes\"?"},
      {"unknown key of a node", [](json& g) { g["nodes"][1]["input"] = 1; }, "node 1"},
      {"missing key", [](json& g) { g["nodes"][1].erase("arguments"); }, "node 1: \"arguments\" is missing"},
      {"cycle", [](json& g) { g["nodes"][0]["arguments"]["value"]["value"] = "w"; },
       "node 0 (test.first): argument \"value\": uses \"w\", which only the later node 1 produces: the graph has a "
       "cycle"},
      {"a node that uses itself", [](json& g) { g["nodes"][1]["arguments"]["self"]["value"] = "w"; }, "cycle"},
      {"a value from nowhere", [](json& g) { g["nodes"][1]["arguments"]["self"]["value"] = "q"; },
       "which no node produces"},
      {"value made twice", [](json& g) { g["nodes"][1]["outputs"][0]["name"] = "y"; }, "\"y\" is produced twice"},
      {"input made again", [](json& g) { g["nodes"][1]["outputs"][0]["name"] = "x"; }, "\"x\" is produced twice"},
      {"no outputs", [](json& g) { g["outputs"] = json::array(); }, "the graph has no outputs"},
      {"unknown output", [](json& g) { g["outputs"][0] = "q"; }, "outputs: uses \"q\""},
      {"node without outputs", [](json& g) { g["nodes"][1]["outputs"] = json::array(); }, "has no outputs"},
      {"output twice", [](json& g) { g["outputs"].push_back(g["outputs"][0]); }, "appears twice among the outputs"},
      {"unknown symbol", [](json& g) { g["nodes"][1]["outputs"][0]["shape"] = {"lenght"}; },
       "did you mean \"length\"?"},
      {"symbol twice", [](json& g) { g["symbols"][1]["name"] = "batch"; }, "two symbols \"batch\""},
      {"symbol that is not an identifier", [](json& g) { g["symbols"][1]["name"] = "a b"; }, "is not an identifier"},
      {"symbol that nothing determines",
       [](json& g) {
         g["inputs"][0]["shape"] = {"batch", 5};
       },
       "is not a dimension of any input"},
      {"symbol from 0", [](json& g) { g["symbols"][1]["min"] = 0; }, "min: 0 is not between"},
      {"range upside down", [](json& g) { g["symbols"][1]["max"] = 0; }, "max: 0 is not between"},
      {"size that can be 0", [](json& g) { g["nodes"][1]["outputs"][0]["shape"] = {"length - 1"}; },
       "of length - 1 = 0"},
      {"size that can be negative", [](json& g) { g["nodes"][1]["outputs"][0]["shape"] = {"3 - batch"}; }, "= -61"},
      {"size that is 1 at both ends of its symbols, and below between",
       [](json& g) {
         g["symbols"][1]["max"] = 64;
         g["nodes"][1]["outputs"][0]["shape"] = {"length - batch + 1"};
       },
       "of -batch + length + 1 = -62"},
      {"negative size", [](json& g) { g["nodes"][1]["outputs"][0]["shape"] = {-3}; }, "of -3 = -3"},
      {"absurd size", [](json& g) { g["nodes"][1]["outputs"][0]["shape"] = {1ll << 41}; }, "output 0"},
      {"product that overflows",
       [](json& g) {
         g["nodes"][1]["outputs"][0]["shape"] = {1ll << 40, 1ll << 40};
       },
       "can have more than"},
      {"too many dimensions", [](json& g) { g["nodes"][1]["outputs"][0]["shape"] = std::vector<int>(9, 1); },
       "more than 8"},
      {"symbolic parameter", [](json& g) { g["parameters"][0]["shape"] = {"batch"}; }, "depends on symbols"},
      {"unknown dtype", [](json& g) { g["inputs"][0]["dtype"] = "float31"; }, "input 0"},
      {"dtype of communicators only", [](json& g) { g["inputs"][0]["dtype"] = "float64"; },
       "unknown dtype \"float64\"; did you mean \"float32\"?"},
      {"dtype as number", [](json& g) { g["inputs"][0]["dtype"] = 3; }, "dtype: expected text"},
      {"two tags", [](json& g) { g["nodes"][1]["arguments"]["self"]["dtype"] = "bool"; }, "an object with one key"},
      {"no tag", [](json& g) { g["nodes"][1]["arguments"]["self"] = json::object(); }, "an object with one key"},
      {"unknown tag",
       [](json& g) {
         g["nodes"][1]["arguments"]["self"] = {{"valeu", "x"}};
       },
       "did you mean \"value"},
      {"nested list", [](json& g) { g["nodes"][1]["arguments"]["self"] = {{1}}; }, "expected a whole number"},
      {"unknown float",
       [](json& g) {
         g["nodes"][1]["arguments"]["self"] = {{"float", "1.5"}};
       },
       "\"inf\""},
      {"number past 64 bits", [](json& g) { g["nodes"][1]["arguments"]["self"] = ~std::uint64_t{0}; },
       "is not between"},
      {"long op name", [](json& g) { g["nodes"][1]["op"] = std::string(513, 'x'); }, "longer than 512"},
      {"nodes as object", [](json& g) { g["nodes"] = json::object(); }, "nodes: expected an array"},
      {"node as number", [](json& g) { g["nodes"][0] = 7; }, "node 0: expected an object"},
      {"arguments as array", [](json& g) { g["nodes"][0]["arguments"] = json::array(); }, "arguments: expected"},
  };
  for (const auto& fault : faults) {
    auto graph = small_graph();
    fault.apply(graph);
    const auto status = parse_graph(graph.dump()).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << fault.name;
    EXPECT_THAT(status.message(), HasSubstr(fault.message)) << fault.name;
  }
}

TEST(GraphJson, random_edits_never_crash_the_reader) {
  std::mt19937 random(5);
  const auto text = small_graph().dump();
  for (int round = 0; round < 20'000; ++round) {
    auto edited = text;
    for (auto edits = 1 + random() % 3; edits > 0; --edits) {
      const auto at = random() % edited.size();
      if (random() % 3 == 0)
        edited.erase(at, random() % 10);
      else if (random() % 2 == 0)
        edited[at] = static_cast<char>(random());
      else
        edited.insert(at, text, random() % text.size(), random() % 20);
    }
    const auto graph = parse_graph(edited);
    if (graph.ok()) {
      const auto again = parse_graph(to_json(*graph));
      ASSERT_TRUE(again.ok()) << again.status().to_string();
      EXPECT_EQ(to_json(*again), to_json(*graph));
    }
  }
}

Graph graph_with(const std::string& op, const std::string& arguments) {
  auto graph = small_graph();
  graph["nodes"] = json::array({{{"op", op},
                                 {"module", "layer.1"},
                                 {"source", "m.py:9"},
                                 {"arguments", json::parse(arguments)},
                                 {"outputs", {{{"name", "w"}, {"dtype", "int64"}, {"shape", {3}}}}}}});
  graph["outputs"] = {"w"};
  auto parsed = parse_graph(graph.dump());
  EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
  return *parsed;
}

TEST(Ops, known_ops_with_valid_arguments_pass) {
  EXPECT_TRUE(
      check_ops(graph_with("aten.linear.default", R"({"input": {"value": "x"}, "weight": {"value": "p"}})")).ok());
  EXPECT_TRUE(check_ops(graph_with("aten.add.Tensor", R"({"self": {"value": "x"}, "other": 1, "alpha": 2.5})")).ok());
  EXPECT_TRUE(check_ops(graph_with("aten.clamp.default", R"({"self": {"value": "x"}, "min": null, "max": 1})")).ok());
  EXPECT_TRUE(check_ops(graph_with("aten.arange.start_step", R"({"start": 0, "end": {"symbolic": "batch"}})")).ok());
}

TEST(Ops, invalid_arguments_are_named_with_their_source_line) {
  const auto refusal = [](const char* op, const char* arguments) {
    const auto status = check_ops(graph_with(op, arguments));
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr("in module \"layer.1\" (m.py:9)"));
    return status.message();
  };
  EXPECT_THAT(refusal("aten.linear.default", R"({"input": {"value": "x"}})"), HasSubstr("\"weight\" is missing"));
  EXPECT_THAT(refusal("aten.linear.default", R"({"input": {"value": "x"}, "weight": null})"),
              HasSubstr("\"weight\" is not of type Tensor"));
  EXPECT_THAT(refusal("aten.view.default", R"({"self": {"value": "x"}, "size": 3})"),
              HasSubstr("\"size\" is not of type int[]"));
  EXPECT_THAT(refusal("aten.view.default", R"({"self": {"value": "x"}, "sise": [3], "size": [3]})"),
              HasSubstr("did you mean \"size\"?"));
}

TEST(Ops, unknown_ops_are_unsupported_and_named_with_their_source_line) {
  const auto status = check_ops(graph_with("aten.lstm.input", "{}"));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("unsupported op \"aten.lstm.input\" in module \"layer.1\" (m.py:9)"));
}

TEST(Ops, the_table_is_sorted_and_has_no_duplicates) {
  for (std::size_t i = 1; i < known_ops().size(); ++i) EXPECT_LT(known_ops()[i - 1].name, known_ops()[i].name);
}

}  // namespace
}  // namespace accord::engine
