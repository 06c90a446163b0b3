// One walk from the front. For each value, the pass tracks whether it is true everywhere (full of true, x >= 0 of an
// arange) or never negative. A node whose output equals one of its inputs is removed, and the input replaces its
// output.
#include <set>

#include "engine/graph/node_access.hpp"
#include "engine/passes/passes.hpp"
#include "engine/passes/uses.hpp"

namespace accord::engine {
namespace {

enum class Known : std::uint8_t { kNothing, kTrue, kNotNegative };

bool is_number(const Node& node, std::string_view name, std::int64_t number) {
  const Argument* argument = find_argument(node, name);
  if (argument == nullptr) return false;
  if (const auto* whole = std::get_if<SymbolicInt>(argument)) return *whole == SymbolicInt(number);
  if (const auto* real = std::get_if<double>(argument)) return *real == static_cast<double>(number);
  return false;
}

bool is_one_of(std::string_view family, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (family == name) return true;
  }
  return false;
}

class IdentityRemover {
 public:
  explicit IdentityRemover(Graph graph) : graph_(std::move(graph)), stands_for_(graph_), known_(graph_.values.size()) {}

  Graph run() && {
    std::vector<Node> kept;
    for (Node& node : graph_.nodes) {
      stands_for_.apply_to(node);
      if (node.outputs.size() == 1) {
        const ValueId output = node.outputs.front();
        if (const auto same = equal_input(node, output)) {
          known_[index(output)] = known_[index(*same)];
          stands_for_.replace(output, *same);
          continue;
        }
        known_[index(output)] = what_is_known(node, output);
        if (const auto operand = neutral_and(node, output)) expand_instead(node, *operand);
      }
      kept.push_back(std::move(node));
    }
    graph_.nodes = std::move(kept);
    stands_for_.apply_to_outputs(graph_);
    return std::move(graph_);
  }

 private:
  static std::size_t index(ValueId id) { return static_cast<std::size_t>(id); }
  const Value& value(ValueId id) const { return graph_.values[index(id)]; }
  bool same_type(ValueId a, ValueId b) const {
    return value(a).dtype == value(b).dtype && value(a).shape == value(b).shape;
  }

  // Returns the input that the node returns unchanged, if there is one.
  std::optional<ValueId> equal_input(const Node& node, ValueId output) const {
    const std::string_view family = op_family(node.op);
    const auto self = tensor_argument(node, "self");
    if (!self || !same_type(*self, output)) return std::nullopt;
    if (is_one_of(family, {"aten._to_copy", "aten.view", "aten.expand", "aten.slice"})) {
      return reverses(node) ? std::nullopt : self;
    }
    if (is_one_of(family, {"aten.add", "aten.sub"}) && is_number(node, "other", 0)) return self;
    if (is_one_of(family, {"aten.mul", "aten.div"}) && is_number(node, "other", 1) &&
        find_argument(node, "rounding_mode") == nullptr) {
      return self;
    }
    return std::nullopt;
  }

  // A slice of the same shape can differ only by a step that is not 1.
  static bool reverses(const Node& node) {
    return op_family(node.op) == "aten.slice" && find_argument(node, "step") != nullptr && !is_number(node, "step", 1);
  }

  Known what_is_known(const Node& node, ValueId output) const {
    const std::string_view family = op_family(node.op);
    const auto self = tensor_argument(node, "self");
    if (is_one_of(family,
                  {"aten.unsqueeze", "aten.squeeze", "aten.view", "aten.expand", "aten.slice", "aten.permute"})) {
      return self ? known_[index(*self)] : Known::kNothing;
    }
    if (family == "aten.arange" && is_number(node, "start", 0) &&
        (!find_argument(node, "step") || is_number(node, "step", 1))) {
      return Known::kNotNegative;
    }
    if (value(output).dtype != DType::kBool) return Known::kNothing;
    if (is_one_of(family, {"aten.full", "aten.full_like"})) {
      const Argument* fill = find_argument(node, "fill_value");
      const bool* flag = fill == nullptr ? nullptr : std::get_if<bool>(fill);
      return (flag != nullptr && *flag) || is_number(node, "fill_value", 1) ? Known::kTrue : Known::kNothing;
    }
    if (family == "aten.ge" && self && known_[index(*self)] == Known::kNotNegative && is_number(node, "other", 0)) {
      return Known::kTrue;
    }
    return Known::kNothing;
  }

  // Returns x of x & true. Both are bool, so bitwise and logical ops are the same.
  std::optional<ValueId> neutral_and(const Node& node, ValueId output) const {
    if (!is_one_of(op_family(node.op), {"aten.bitwise_and", "aten.logical_and"})) return std::nullopt;
    const auto self = tensor_argument(node, "self");
    const auto other = tensor_argument(node, "other");
    if (!self || !other || value(output).dtype != DType::kBool) return std::nullopt;
    if (known_[index(*other)] == Known::kTrue && value(*self).dtype == DType::kBool) return self;
    if (known_[index(*self)] == Known::kTrue && value(*other).dtype == DType::kBool) return other;
    return std::nullopt;
  }

  // Expanding is free: the runtime only sets strides to 0.
  void expand_instead(Node& node, ValueId operand) {
    const SymbolicShape shape = value(node.outputs.front()).shape;
    node.op = "aten.expand.default";
    node.arguments = {{"self", ValueRef{operand}}, {"size", shape}};
    known_[index(node.outputs.front())] = known_[index(operand)];
  }

  Graph graph_;
  Substitution stands_for_;
  std::vector<Known> known_;
};

}  // namespace

Graph remove_identities(Graph graph) { return IdentityRemover(std::move(graph)).run(); }

}  // namespace accord::engine
