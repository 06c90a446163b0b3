// At the end of a row-parallel layer, the ranks add up its partial sums, and a norm reads the result, mostly together
// with the residual. In some models the layer's bias (the norm's "addend") is added in between. This pass makes it one
// step. It runs after residual sums and norms have been fused. The fused node takes the place of the norm; the order
// of collectives is the same on all ranks, since all have the same graph.
#include <array>

#include "engine/graph/node_access.hpp"
#include "engine/passes/makers.hpp"
#include "engine/passes/passes.hpp"

namespace accord::engine {
namespace {

struct Fusion {
  std::string_view norm;
  std::string_view fused;
};
constexpr std::array kFusions = {Fusion{"aten.layer_norm.default", "accord.all_reduce_layer_norm"},
                                 Fusion{"accord.rms_norm", "accord.all_reduce_rms_norm"},
                                 Fusion{"aten.rms_norm.default", "accord.all_reduce_rms_norm"},
                                 Fusion{"accord.add_layer_norm", "accord.all_reduce_add_layer_norm"},
                                 Fusion{"accord.add_rms_norm", "accord.all_reduce_add_rms_norm"}};

// A sum over the ranks, and the vector that is added to each of its rows.
struct Sum {
  const Node* reduce = nullptr;
  std::optional<ValueId> addend;
};

// Returns the sum that `value` consists of.
Sum find_sum(const Producers& producers, std::optional<ValueId> value) {
  Sum sum;
  if (const Node* add = producers.find(value, "aten.add"); add != nullptr && producers.used_once(*add)) {
    const auto both = operands(*add);
    if (!both || producers.value(both->other).shape.size() != 1 ||
        producers.value(both->other).shape.back() != producers.value(both->self).shape.back() ||
        producers.value(both->other).dtype != producers.value(both->self).dtype) {
      return {};
    }
    sum.addend = both->other;
    value = both->self;
  }
  const Node* reduce = producers.find(value, "accord.all_reduce");
  if (reduce == nullptr || !producers.used_once(*reduce)) return {};
  const Argument* op = find_argument(*reduce, "op");
  if (op == nullptr || *op == Argument(std::string("sum"))) sum.reduce = reduce;
  return sum;
}

std::optional<Node> fused(const Producers& producers, const Node& norm) {
  for (const auto& [name, fused_name] : kFusions) {
    if (norm.op != name) continue;
    // The rows come from one of these; the other of a pair is the residual.
    for (const std::string_view input : {"input", "self", "residual"}) {
      const auto& [reduce, addend] = find_sum(producers, tensor_argument(norm, input));
      if (reduce == nullptr) continue;
      Node both = norm;
      both.op = fused_name;
      if (input == "residual") both.arguments["residual"] = norm.arguments.at("self");
      both.arguments[input == "residual" ? "self" : std::string(input)] = reduce->arguments.at("self");
      both.arguments["group"] = reduce->arguments.at("group");
      if (reduce->arguments.count("exact") > 0) both.arguments["exact"] = true;
      if (addend) both.arguments["addend"] = ValueRef{*addend};
      return both;
    }
  }
  return std::nullopt;
}

}  // namespace

std::string_view norm_of_reduce_norm(std::string_view op) {
  for (const Fusion& fusion : kFusions) {
    if (fusion.fused == op) return fusion.norm;
  }
  return {};
}

Graph fuse_reduce_norm(Graph graph) {
  const Producers producers(graph);
  for (Node& node : graph.nodes) {
    if (std::optional<Node> both = fused(producers, node)) node = std::move(*both);
  }
  return graph;
}

}  // namespace accord::engine
