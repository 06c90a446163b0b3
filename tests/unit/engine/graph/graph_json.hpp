#pragma once
// Writes a Graph as graph.json, the inverse of graph_reader.cpp. Each value is written with the node that creates it;
// a value that no node creates is omitted.

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/graph/graph.hpp"

namespace accord::engine {
namespace graph_json {

using nlohmann::json;

inline json size_json(const SymbolicInt& size) {
  return size.is_constant() ? json(size.constant()) : json(size.to_string());
}

inline json sizes_json(const std::vector<SymbolicInt>& sizes) {
  auto list = json::array();
  for (const auto& size : sizes) list.push_back(size_json(size));
  return list;
}

inline json value_json(const Graph& graph, ValueId id) {
  const auto& value = graph.values[static_cast<std::size_t>(id)];
  return {{"name", value.name}, {"dtype", to_string(value.dtype)}, {"shape", sizes_json(value.shape)}};
}

struct ArgumentWriter {
  const Graph& graph;

  json name(ValueRef reference) const {
    return reference.id < 0 ? json(nullptr) : json(graph.values[static_cast<std::size_t>(reference.id)].name);
  }
  json operator()(None) const { return nullptr; }
  json operator()(ValueRef reference) const { return {{"value", name(reference)}}; }
  json operator()(const SymbolicInt& size) const {
    return size.is_constant() ? json(size.constant()) : json{{"symbolic", size.to_string()}};
  }
  json operator()(double number) const {
    if (std::isnan(number)) return {{"float", "nan"}};
    if (std::isinf(number)) return {{"float", number > 0 ? "inf" : "-inf"}};
    return number;
  }
  json operator()(bool flag) const { return flag; }
  json operator()(const std::string& text) const { return text; }
  json operator()(DType dtype) const { return {{"dtype", to_string(dtype)}}; }
  json operator()(const std::vector<SymbolicInt>& sizes) const { return sizes_json(sizes); }
  json operator()(const std::vector<ValueRef>& references) const {
    auto names = json::array();
    for (const auto reference : references) names.push_back(name(reference));
    return {{"values", std::move(names)}};
  }
};

}  // namespace graph_json

inline std::string to_json(const Graph& graph) {
  using namespace graph_json;
  nlohmann::ordered_json document;
  auto symbols = json::array();
  for (const auto& symbol : graph.symbols) {
    symbols.push_back({{"name", symbol.name}, {"min", symbol.min}, {"max", symbol.max}});
  }
  auto inputs = json::array();
  for (const auto id : graph.inputs) inputs.push_back(value_json(graph, id));
  auto parameters = json::array();
  for (const auto& parameter : graph.parameters) {
    auto item = value_json(graph, parameter.value);
    item["tensor"] = parameter.tensor;
    parameters.push_back(std::move(item));
  }
  auto nodes = json::array();
  for (const auto& node : graph.nodes) {
    auto arguments = json::object();
    for (const auto& [name, argument] : node.arguments) arguments[name] = std::visit(ArgumentWriter{graph}, argument);
    auto outputs = json::array();
    for (const auto id : node.outputs) outputs.push_back(value_json(graph, id));
    nodes.push_back({{"op", node.op},
                     {"arguments", std::move(arguments)},
                     {"outputs", std::move(outputs)},
                     {"module", node.module},
                     {"source", node.source}});
  }
  auto outputs = json::array();
  for (const auto id : graph.outputs) outputs.push_back(graph.values[static_cast<std::size_t>(id)].name);
  document["symbols"] = std::move(symbols);
  document["inputs"] = std::move(inputs);
  document["parameters"] = std::move(parameters);
  document["nodes"] = std::move(nodes);
  document["outputs"] = std::move(outputs);
  return document.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace accord::engine
