// Fuses products of one input with weights of the package. If one is the gate of another, the two and their product
// become one node:
//     activation(x * gate^T) * (x * weight^T)
// Others, such as query, key and value, become one node with several outputs, in the place of the first of them: the
// rows are converted to the products' input format once, and the threads divide all of the weights among themselves
// and synchronize once. The weights stay separate and are not moved. Only linears with no other product between them
// are joined: otherwise everything that many layers compute from one input (such as keys of an encoder's output) would
// be live from the first layer on.
#include <algorithm>
#include <iterator>

#include "engine/graph/node_access.hpp"
#include "engine/passes/makers.hpp"
#include "engine/passes/passes.hpp"

namespace accord::engine {
namespace {

constexpr std::string_view kProducts[] = {
    "aten.linear", "accord.linear", "accord.gated_linear", "accord.linears",   "aten.mm",
    "aten.addmm",  "aten.bmm",      "accord.experts",      "accord.attention", "aten.convolution"};

class Weights {
 public:
  explicit Weights(const Graph& graph) : is_parameter_(graph.values.size(), false) {
    for (const Parameter& parameter : graph.parameters) is_parameter_[index(parameter.value)] = true;
  }

  // Returns true for a linear layer whose weight and bias are parameters and whose inputs are not divided into pieces.
  bool are_parameters_of(const Node& linear) const {
    const auto weight = tensor_argument(linear, "weight");
    const auto bias = tensor_argument(linear, "bias");
    return weight && is_parameter_[index(*weight)] && (!bias || is_parameter_[index(*bias)]) &&
           tensor_argument(linear, "input") && find_argument(linear, "pieces") == nullptr;
  }

 private:
  static std::size_t index(ValueId id) { return static_cast<std::size_t>(id); }
  std::vector<bool> is_parameter_;
};

std::optional<Node> gated_linear(const Producers& producers, const Weights& weights, const Node& node) {
  const auto factors = op_family(node.op) == "aten.mul" ? operands(node) : std::nullopt;
  if (!factors) return std::nullopt;
  for (const auto& [gated, plain] :
       {std::pair(factors->self, factors->other), std::pair(factors->other, factors->self)}) {
    const Node* gate = producers.find(gated, "accord.linear");
    const Node* linear = producers.find(plain, "aten.linear");
    if (gate == nullptr || linear == nullptr || !producers.used_once(*gate) || !producers.used_once(*linear)) continue;
    if (!weights.are_parameters_of(*gate) || !weights.are_parameters_of(*linear)) continue;
    const Value &of_gate = producers.value(gated), &of_linear = producers.value(plain);
    const Value& product = producers.value(node.outputs.front());
    if (tensor_argument(*gate, "input") != tensor_argument(*linear, "input") || of_gate.shape != of_linear.shape ||
        of_gate.dtype != of_linear.dtype || product.dtype != of_gate.dtype) {
      continue;
    }
    Node both = *linear;
    both.op = "accord.gated_linear";
    both.arguments["gate"] = gate->arguments.at("weight");
    if (find_argument(*gate, "bias") != nullptr) both.arguments["gate_bias"] = gate->arguments.at("bias");
    both.arguments["activation"] = gate->arguments.at("activation");
    both.outputs = node.outputs;
    both.module = gate->module + ", " + linear->module;
    return both;
  }
  return std::nullopt;
}

// Merges `nodes` into one.
Node joined(const std::vector<const Node*>& nodes) {
  Node all = *nodes.front();
  all.op = "accord.linears";
  all.arguments = {{"input", nodes.front()->arguments.at("input")}};
  all.outputs.clear();
  all.module.clear();
  std::vector<ValueRef> weights, biases;
  for (const Node* node : nodes) {
    weights.push_back({*tensor_argument(*node, "weight")});
    biases.push_back({tensor_argument(*node, "bias").value_or(-1)});
    all.outputs.push_back(node->outputs.front());
    all.module += (all.module.empty() ? "" : ", ") + node->module;
  }
  all.arguments["weights"] = weights;
  all.arguments["biases"] = biases;
  return all;
}

}  // namespace

Graph fuse_gated_linear(Graph graph) {
  const Producers producers(graph);
  const Weights weights(graph);
  for (Node& node : graph.nodes) {
    if (std::optional<Node> both = gated_linear(producers, weights, node)) node = std::move(*both);
  }
  return graph;
}

Graph fuse_linears(Graph graph) {
  const Weights weights(graph);
  std::vector<std::vector<const Node*>> groups;  // consecutive layers with the same input
  std::vector<int> group_of(graph.nodes.size(), -1);
  ValueId input = -1;  // of the group that the next layer may join
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const std::string_view family = op_family(node.op);
    if (std::find(std::begin(kProducts), std::end(kProducts), family) == std::end(kProducts)) continue;
    if (family != "aten.linear" || !weights.are_parameters_of(node)) {
      input = -1;
      continue;
    }
    const ValueId own = tensor_argument(node, "input").value_or(-1);
    if (own != input) groups.emplace_back();
    input = own;
    groups.back().push_back(&node);
    group_of[i] = static_cast<int>(groups.size() - 1);
  }
  std::vector<Node> kept;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const std::vector<const Node*>* group = group_of[i] < 0 ? nullptr : &groups[static_cast<std::size_t>(group_of[i])];
    if (group == nullptr || group->size() == 1) {
      kept.push_back(graph.nodes[i]);
    } else if (group->front() == &graph.nodes[i]) {
      kept.push_back(joined(*group));
    }
  }
  graph.nodes = std::move(kept);
  return graph;
}

}  // namespace accord::engine
