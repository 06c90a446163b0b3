// The activation costs nothing while the product still has its output in registers or cache. The linear must have no
// other user, and its weight must be a parameter: only packed weights have such a kernel. The fused node takes the
// place of the activation.
#include <optional>

#include "engine/graph/node_access.hpp"
#include "engine/passes/passes.hpp"
#include "engine/passes/uses.hpp"

namespace accord::engine {
namespace {

std::optional<std::string> activation_of(const Node& node) {
  const std::string_view family = op_family(node.op);
  if (family == "aten.relu") return "relu";
  if (family == "aten.silu") return "silu";
  if (family == "aten.tanh") return "tanh";
  if (family != "aten.gelu") return std::nullopt;
  const Argument* approximate = find_argument(node, "approximate");
  if (approximate == nullptr || *approximate == Argument(std::string("none"))) return "gelu";
  if (*approximate == Argument(std::string("tanh"))) return "gelu_tanh";
  return std::nullopt;
}

}  // namespace

Graph fuse_linear_activation(Graph graph) {
  const std::vector<int> uses = count_uses(graph);
  std::vector<int> producer(graph.values.size(), -1);
  std::vector<bool> fused(graph.nodes.size(), false);
  std::vector<bool> is_parameter(graph.values.size(), false);
  for (const Parameter& parameter : graph.parameters) is_parameter[static_cast<std::size_t>(parameter.value)] = true;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    for (const ValueId output : node.outputs) producer[static_cast<std::size_t>(output)] = static_cast<int>(i);
    const auto activation = activation_of(node);
    const auto self = tensor_argument(node, "self");
    if (!activation || !self || producer[static_cast<std::size_t>(*self)] < 0) continue;
    const std::size_t linear_index = static_cast<std::size_t>(producer[static_cast<std::size_t>(*self)]);
    const Node& linear = graph.nodes[linear_index];
    if (linear.op != "aten.linear.default" || uses[static_cast<std::size_t>(*self)] != 1) continue;
    const auto weight = tensor_argument(linear, "weight");
    if (!weight || !is_parameter[static_cast<std::size_t>(*weight)]) continue;
    Node replacement = linear;
    replacement.op = "accord.linear";
    replacement.arguments["activation"] = *activation;
    replacement.outputs = node.outputs;
    node = std::move(replacement);
    fused[linear_index] = true;
  }
  std::vector<Node> kept;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!fused[i]) kept.push_back(std::move(graph.nodes[i]));
  }
  graph.nodes = std::move(kept);
  return graph;
}

}  // namespace accord::engine
