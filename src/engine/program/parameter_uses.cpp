// Finds how nodes read weights, from their ops and the arguments that name the weights.
#include <algorithm>

#include "engine/graph/node_access.hpp"
#include "engine/graph/ops.hpp"
#include "engine/program/parameters.hpp"

namespace accord::engine {
namespace {

bool is_linear(const Node& node) {
  return node.op == "aten.linear.default" || node.op == "accord.linear" || node.op == "accord.gated_linear" ||
         node.op == "accord.linears";
}
bool is_product(const Node& node) { return node.op == "aten.mm.default" || node.op == "aten.addmm.default"; }
bool is_embedding(const Node& node) { return node.op == "aten.embedding.default" || node.op == "accord.embedding"; }
bool is_convolution(const Node& node) { return node.op == "aten.convolution.default"; }

// Returns the inputs that the node reads as packed weights.
std::vector<ValueId> packed_weights(const Node& node) {
  std::vector<ValueId> weights;
  for (const std::string_view name : {is_product(node) ? "mat2" : "weight", "gate"}) {
    if (const auto weight = tensor_argument(node, name)) weights.push_back(*weight);
  }
  const Argument* const argument = find_argument(node, "weights");
  if (const auto* refs = argument == nullptr ? nullptr : std::get_if<std::vector<ValueRef>>(argument)) {
    for (const ValueRef& ref : *refs) weights.push_back(ref.id);
  }
  return weights;
}

int groups_of(const Node& node) {
  const Result<std::int64_t> groups = integer_argument(node, "groups", 1);
  return groups.ok() ? static_cast<int>(std::clamp<std::int64_t>(*groups, 1, 1 << 30)) : 1;
}

// Returns whether `id` is an argument of a layer of experts, of heads, or with adapters, that is packed as matrices.
bool is_stacked_weight(const Node& node, ValueId id) {
  if (node.op == "accord.adapters") return tensor_argument(node, "down") == id || tensor_argument(node, "up") == id;
  if (node.op == kHeadLinear) return tensor_argument(node, "weight") == id;
  const std::string_view family = op_family(node.op);
  if (family != "accord.experts" && family != "accord.dispatched_experts") return false;
  return tensor_argument(node, "up") == id || tensor_argument(node, "gate") == id ||
         tensor_argument(node, "down") == id;
}

}  // namespace

std::vector<ParameterUse> parameter_uses(const Graph& graph) {
  std::vector<ParameterUse> by_value(graph.values.size());
  for (const Node& node : graph.nodes) {
    const auto table = is_embedding(node) ? tensor_argument(node, "weight") : std::nullopt;
    if (table) by_value[static_cast<std::size_t>(*table)].table = true;
    std::vector<ValueId> packed;
    if (is_linear(node) || is_product(node)) packed = packed_weights(node);
    for_each_input(node, [&](ValueId id) {
      ParameterUse& use = by_value[static_cast<std::size_t>(id)];
      if (is_stacked_weight(node, id)) {
        use.experts = true;
      } else if (is_convolution(node) && tensor_argument(node, "weight") == id) {
        use.convolution = groups_of(node);
      } else if (const auto found = std::find(packed.begin(), packed.end(), id); found != packed.end()) {
        (is_linear(node) ? use.linear : use.product) = true;
        packed.erase(found);
      } else if (table != id) {
        use.plain = true;
      }
    });
  }
  for (const ValueId output : graph.outputs) by_value[static_cast<std::size_t>(output)].plain = true;
  std::vector<ParameterUse> uses;
  for (const Parameter& parameter : graph.parameters)
    uses.push_back(by_value[static_cast<std::size_t>(parameter.value)]);
  return uses;
}

}  // namespace accord::engine
