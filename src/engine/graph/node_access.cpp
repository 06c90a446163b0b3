// Arguments are kept by name with defaults left out, so the caller supplies the default. An argument of the wrong kind
// is a defect of the package and is reported as such.
#include "engine/graph/node_access.hpp"

#include <fmt/format.h>

namespace accord::engine {
namespace {

Status wrong_kind(const Node& node, std::string_view name, std::string_view expected) {
  return Status(StatusCode::kCorrupt, fmt::format("{}: argument \"{}\" is not {}", node_text(node), name, expected));
}

template <typename NodeType, typename Visit>
void visit_inputs(NodeType& node, const Visit& visit) {
  for (auto& [name, argument] : node.arguments) {
    if (auto* single = std::get_if<ValueRef>(&argument); single != nullptr && single->id >= 0) visit(single->id);
    if (auto* list = std::get_if<std::vector<ValueRef>>(&argument)) {
      for (auto& ref : *list) {
        if (ref.id >= 0) visit(ref.id);
      }
    }
  }
}

}  // namespace

std::string node_text(const Node& node) {
  std::string text = "\"" + node.op + "\"";
  if (!node.module.empty()) text += " in module \"" + node.module + "\"";
  if (!node.source.empty()) text += " (" + node.source + ")";
  return text;
}

std::string_view op_family(std::string_view op) {
  const auto first = op.find('.');
  if (first == std::string_view::npos) return op;
  return op.substr(0, op.find('.', first + 1));
}

const Argument* find_argument(const Node& node, std::string_view name) {
  const auto found = node.arguments.find(std::string(name));
  if (found == node.arguments.end() || std::holds_alternative<None>(found->second)) return nullptr;
  return &found->second;
}

std::optional<ValueId> tensor_argument(const Node& node, std::string_view name) {
  const Argument* argument = find_argument(node, name);
  if (argument == nullptr) return std::nullopt;
  const auto* ref = std::get_if<ValueRef>(argument);
  if (ref == nullptr || ref->id < 0) return std::nullopt;
  return ref->id;
}

Result<std::int64_t> integer_argument(const Node& node, std::string_view name,
                                      std::optional<std::int64_t> default_value) {
  const Argument* argument = find_argument(node, name);
  if (argument == nullptr) {
    if (default_value) return *default_value;
    return Status(StatusCode::kCorrupt, fmt::format("{}: argument \"{}\" is missing", node_text(node), name));
  }
  const auto* number = std::get_if<SymbolicInt>(argument);
  if (number == nullptr || !number->is_constant()) return wrong_kind(node, name, "a constant whole number");
  return number->constant();
}

Result<std::vector<std::int64_t>> integers_argument(const Node& node, std::string_view name) {
  std::vector<std::int64_t> numbers;
  const Argument* argument = find_argument(node, name);
  if (argument == nullptr) return numbers;
  if (std::holds_alternative<SymbolicInt>(*argument)) {
    ACCORD_ASSIGN_OR_RETURN(const std::int64_t number, integer_argument(node, name));
    numbers.push_back(number);
    return numbers;
  }
  const auto* list = std::get_if<std::vector<SymbolicInt>>(argument);
  if (list == nullptr) {
    const auto* refs = std::get_if<std::vector<ValueRef>>(argument);
    if (refs != nullptr && refs->empty()) return numbers;
    return wrong_kind(node, name, "a list of constant whole numbers");
  }
  for (const SymbolicInt& number : *list) {
    if (!number.is_constant()) return wrong_kind(node, name, "a list of constant whole numbers");
    numbers.push_back(number.constant());
  }
  return numbers;
}

Result<bool> flag_argument(const Node& node, std::string_view name, bool default_value) {
  const Argument* argument = find_argument(node, name);
  if (argument == nullptr) return default_value;
  if (const auto* flag = std::get_if<bool>(argument)) return *flag;
  const auto* number = std::get_if<SymbolicInt>(argument);
  if (number != nullptr && (*number == SymbolicInt(0) || *number == SymbolicInt(1))) return *number == SymbolicInt(1);
  return wrong_kind(node, name, "true or false");
}

void for_each_input(const Node& node, const std::function<void(ValueId)>& visit) { visit_inputs(node, visit); }

void for_each_input(Node& node, const std::function<void(ValueId&)>& visit) { visit_inputs(node, visit); }

std::optional<std::string> group_argument(const Node& node) {
  for (const std::string_view name : {"group", "group_name"}) {
    const Argument* argument = find_argument(node, name);
    if (argument == nullptr) continue;
    if (const auto* group = std::get_if<std::string>(argument)) return *group;
  }
  return std::nullopt;
}

Result<int> dimension_index(const Node& node, std::int64_t dim, int dims) {
  const std::int64_t index = dim < 0 ? dim + dims : dim;
  // A scalar counts as having one dimension, as in PyTorch.
  if (index < 0 || index >= std::max(dims, 1)) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: dimension {} does not exist in a tensor with {} dimensions",
                                                    node_text(node), dim, dims));
  }
  return static_cast<int>(index);
}

}  // namespace accord::engine
