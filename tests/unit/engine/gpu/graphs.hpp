#pragma once
// Graphs of a few ops with their inputs and weights, for devices and for the CPU.

#include "unit/engine/gpu/engines.hpp"

namespace accord::engine {

using Shapes = std::vector<std::int64_t>;

inline std::size_t count_of(const Shapes& shape) {
  std::size_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  return count;
}

inline SymbolicShape symbolic(const Shapes& shape) { return {shape.begin(), shape.end()}; }

/// Builds a graph together with its inputs and weights.
class OneGraph {
 public:
  ValueId input(DType dtype, const Shapes& shape, std::vector<float> values = {}) {
    if (values.empty())
      values = accord::testing::some_numbers(count_of(shape), static_cast<unsigned>(inputs_.size() + 1));
    inputs_.emplace_back(dtype, shape, values);
    return writer_.input("x" + std::to_string(inputs_.size()), symbolic(shape), dtype);
  }
  ValueId weight(DType dtype, const Shapes& shape, float scale = 1.0F) {
    const auto seed = static_cast<unsigned>(weights_.size() + 7);
    std::vector<float> values = accord::testing::some_numbers(count_of(shape), seed);
    for (float& value : values) value *= scale;
    const std::string name = "w" + std::to_string(weights_.size());
    weights_.emplace(name, accord::testing::HostTensor(dtype, shape, values));
    return writer_.parameter(name, symbolic(shape), dtype);
  }
  ValueId node(const std::string& op, Arguments arguments, const Shapes& shape, DType dtype) {
    return writer_.node(op, std::move(arguments), symbolic(shape), dtype);
  }
  GraphWriter& writer() { return writer_; }
  EngineParts parts(const std::vector<ValueId>& outputs) {
    GraphWriter whole = writer_;
    for (const ValueId output : outputs) whole.output(output);
    EngineParts parts{.name = "one", .graph = to_json(whole.graph()), .weights = {}, .sizes = {}};
    for (auto& [name, tensor] : weights_) parts.weights.emplace(name, tensor.view());
    return parts;
  }
  const std::vector<accord::testing::HostTensor>& inputs() const { return inputs_; }

 private:
  GraphWriter writer_;
  std::vector<accord::testing::HostTensor> inputs_;
  std::map<std::string, accord::testing::HostTensor> weights_;
};

inline constexpr float kFloat32Error = 2e-5F;

inline float error_of(DType dtype) {
  return dtype == DType::kFloat32 ? kFloat32Error : dtype == DType::kBFloat16 ? 0.016F : 0.002F;
}

class DeviceOps : public accord::testing::OnAnyDevice<> {
 protected:
  static void expect_same(OneGraph& graph, const std::vector<ValueId>& outputs, float tolerance) {
    DeviceEngines::expect_same(graph.parts(outputs), graph.inputs(), tolerance);
  }
  static void expect_same(OneGraph& graph, ValueId output, float tolerance) {
    expect_same(graph, std::vector{output}, tolerance);
  }
};

}  // namespace accord::engine
