#pragma once
// Builds small graphs for tests.

#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/graph.hpp"
#include "engine/package/package.hpp"

namespace accord::engine {

/// Sizes as in the format: shape_of({"batch", "12", "length*2"}).
inline SymbolicShape shape_of(std::initializer_list<std::string> sizes) {
  SymbolicShape shape;
  for (const std::string& size : sizes) {
    Result<SymbolicInt> parsed = SymbolicInt::parse(size);
    EXPECT_TRUE(parsed.ok()) << size;
    shape.push_back(*parsed);
  }
  return shape;
}

inline Argument of(ValueId id) { return ValueRef{id}; }
inline Argument number(std::int64_t value) { return SymbolicInt(value); }
inline Argument text(std::string value) { return value; }
inline Argument numbers(std::initializer_list<std::string> sizes) { return shape_of(sizes); }

using Arguments = std::map<std::string, Argument>;

class GraphWriter {
 public:
  void symbol(const std::string& name, std::int64_t min, std::int64_t max) {
    graph_.symbols.push_back({name, min, max});
  }

  ValueId input(const std::string& name, const SymbolicShape& shape, DType dtype = DType::kFloat32) {
    const ValueId id = value(name, shape, dtype);
    graph_.inputs.push_back(id);
    return id;
  }
  /// Adds a weight, which has the same name in the manifest.
  ValueId parameter(const std::string& name, const SymbolicShape& shape, DType dtype = DType::kFloat32) {
    const ValueId id = value(name, shape, dtype);
    graph_.parameters.push_back({id, name});
    return id;
  }
  ValueId node(const std::string& op, Arguments arguments, const SymbolicShape& shape, DType dtype = DType::kFloat32) {
    const std::string count = std::to_string(graph_.nodes.size());
    const ValueId id = value("value" + count, shape, dtype);
    graph_.nodes.push_back({op, std::move(arguments), {id}, "layer" + count, "model.py:" + count});
    return id;
  }
  /// Adds an output to the last node.
  ValueId more_output(const SymbolicShape& shape, DType dtype = DType::kFloat32) {
    const ValueId id = value("value" + std::to_string(graph_.values.size()) + "b", shape, dtype);
    graph_.nodes.back().outputs.push_back(id);
    return id;
  }
  void output(ValueId id) { graph_.outputs.push_back(id); }

  const Graph& graph() const { return graph_; }

 private:
  ValueId value(const std::string& name, const SymbolicShape& shape, DType dtype) {
    graph_.values.push_back({name, dtype, shape});
    return static_cast<ValueId>(graph_.values.size() - 1);
  }
  Graph graph_;
};

/// Returns a manifest that lists the graph's weights; those in `shardings` are divided.
inline Manifest manifest_of(const Graph& graph, const std::map<std::string, Sharding>& shardings) {
  Manifest manifest;
  manifest.groups = {"tp", "ep"};
  for (const Parameter& parameter : graph.parameters) {
    TensorEntry entry;
    entry.name = parameter.tensor;
    const Value& value = graph.values[static_cast<std::size_t>(parameter.value)];
    entry.dtype = value.dtype;
    for (const SymbolicInt& size : value.shape) entry.shape.push_back(size.constant());
    entry.granule_xxh3.resize(1);
    if (const auto found = shardings.find(entry.name); found != shardings.end()) {
      entry.sharding = found->second;
      entry.granule_xxh3.resize(
          static_cast<std::size_t>(entry.shape[static_cast<std::size_t>(found->second.dim)] / found->second.unit));
    }
    manifest.tensors.push_back(entry);
  }
  return manifest;
}

/// Returns the ops of the nodes, in order.
inline std::vector<std::string> ops_of(const Graph& graph) {
  std::vector<std::string> ops;
  for (const Node& node : graph.nodes) ops.push_back(node.op);
  return ops;
}

}  // namespace accord::engine
