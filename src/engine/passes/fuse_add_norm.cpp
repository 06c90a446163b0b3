// A residual sum and its norm become one pass over the rows. The fused node takes the place of the sum, which is early
// enough for all other users of the sum. The norm's weight and bias must therefore be parameters.
#include "engine/graph/node_access.hpp"
#include "engine/passes/passes.hpp"
#include "engine/passes/uses.hpp"
#include "kernels/view.hpp"

namespace accord::engine {
namespace {

class AddNormFuser {
 public:
  explicit AddNormFuser(Graph graph)
      : graph_(std::move(graph)),
        uses_(count_uses(graph_)),
        sum_node_(graph_.values.size(), -1),
        is_parameter_(graph_.values.size(), false) {
    for (const Parameter& parameter : graph_.parameters) is_parameter_[index(parameter.value)] = true;
  }

  Graph run() && {
    std::vector<bool> removed(graph_.nodes.size(), false);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (is_residual_sum(node)) sum_node_[index(node.outputs.front())] = static_cast<int>(i);
      if (!fused_name(node)) continue;
      const auto input = tensor_argument(node, "input");
      if (!input || sum_node_[index(*input)] < 0 || !has_parameters_only(node)) continue;
      Node& add = graph_.nodes[static_cast<std::size_t>(sum_node_[index(*input)])];
      sum_node_[index(*input)] = -1;
      add = fuse(add, node);
      removed[i] = true;
    }
    std::vector<Node> kept;
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!removed[i]) kept.push_back(std::move(graph_.nodes[i]));
    }
    graph_.nodes = std::move(kept);
    return std::move(graph_);
  }

 private:
  static std::optional<std::string> fused_name(const Node& norm) {
    if (norm.op == "aten.layer_norm.default") return "accord.add_layer_norm";
    if (norm.op == "aten.rms_norm.default" || norm.op == "accord.rms_norm") return "accord.add_rms_norm";
    return std::nullopt;
  }

  static std::size_t index(ValueId id) { return static_cast<std::size_t>(id); }

  // Two tensors of the output's shape and dtype, added without a factor.
  bool is_residual_sum(const Node& node) const {
    if (node.op != "aten.add.Tensor" || node.outputs.size() != 1 || find_argument(node, "alpha") != nullptr)
      return false;
    const auto self = tensor_argument(node, "self");
    const auto other = tensor_argument(node, "other");
    if (!self || !other) return false;
    const Value& sum = graph_.values[index(node.outputs.front())];
    const auto fits = [&](ValueId id) {
      return graph_.values[index(id)].shape == sum.shape && graph_.values[index(id)].dtype == sum.dtype;
    };
    return kernels::is_real(sum.dtype) && fits(*self) && fits(*other);
  }

  bool has_parameters_only(const Node& norm) const {
    for (const std::string_view name : {"weight", "bias"}) {
      const auto tensor = tensor_argument(norm, name);
      if (tensor && !is_parameter_[index(*tensor)]) return false;
    }
    const Result<std::vector<std::int64_t>> normalized = integers_argument(norm, "normalized_shape");
    return normalized.ok() && normalized->size() == 1;
  }

  Node fuse(const Node& add, const Node& norm) const {
    Node fused = norm;
    fused.op = *fused_name(norm);
    fused.arguments.erase("input");
    fused.arguments["self"] = add.arguments.at("self");
    fused.arguments["residual"] = add.arguments.at("other");
    const ValueId sum = add.outputs.front();
    if (uses_[index(sum)] > 1) fused.outputs.push_back(sum);
    return fused;
  }

  Graph graph_;
  std::vector<int> uses_;
  std::vector<int> sum_node_;  // the node that produces the value by addition; -1 if none
  std::vector<bool> is_parameter_;
};

}  // namespace

Graph fuse_add_norm(Graph graph) { return AddNormFuser(std::move(graph)).run(); }

}  // namespace accord::engine
