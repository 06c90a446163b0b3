// The table is ops.inc. Its argument texts are short ("Tensor input, Scalar alpha=1"), so they are parsed each time a
// node is checked: type, name, and whether there is a default.

#include "engine/graph/ops.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/text.hpp"
#include "engine/graph/node_access.hpp"

namespace accord::engine {
namespace {

constexpr OpInfo kOps[] = {
#define ACCORD_OP(name, arguments) OpInfo{name, arguments},
#include "engine/graph/ops.inc"
#undef ACCORD_OP
};

struct ArgumentInfo {
  std::string_view type;  // without "?"
  std::string_view name;
  bool may_be_none = false;
  bool required = true;
};

std::vector<ArgumentInfo> arguments_of(std::string_view text) {
  std::vector<ArgumentInfo> arguments;
  for (auto piece : split_text(text, ',')) {
    piece.remove_prefix(std::min(piece.find_first_not_of(' '), piece.size()));
    const auto space = piece.find(' ');
    ArgumentInfo argument;
    argument.type = piece.substr(0, space);
    argument.name = piece.substr(space + 1);
    if (const auto equals = argument.name.find('='); equals != std::string_view::npos) {
      argument.required = false;
      argument.name = argument.name.substr(0, equals);
    }
    if (argument.type.ends_with('?')) {
      argument.may_be_none = true;
      argument.type.remove_suffix(1);
    }
    arguments.push_back(argument);
  }
  return arguments;
}

bool is_number(const Argument& argument) {
  return std::holds_alternative<SymbolicInt>(argument) || std::holds_alternative<double>(argument) ||
         std::holds_alternative<bool>(argument);
}

bool has_type(const Argument& argument, std::string_view type) {
  if (type == "Tensor") return std::holds_alternative<ValueRef>(argument);
  if (type == "Tensor[]") return std::holds_alternative<std::vector<ValueRef>>(argument);
  if (type == "Scalar") return is_number(argument);
  if (type == "Tensor|Scalar") return std::holds_alternative<ValueRef>(argument) || is_number(argument);
  if (type == "int") return std::holds_alternative<SymbolicInt>(argument);
  if (type == "int[]") return std::holds_alternative<std::vector<SymbolicInt>>(argument);
  if (type == "float") return std::holds_alternative<double>(argument) || std::holds_alternative<SymbolicInt>(argument);
  if (type == "bool") return std::holds_alternative<bool>(argument);
  if (type == "str") return std::holds_alternative<std::string>(argument);
  return type == "ScalarType" && std::holds_alternative<DType>(argument);
}

Status check_arguments(const Node& node, const OpInfo& op) {
  const auto known = arguments_of(op.arguments);
  for (const auto& info : known) {
    const auto found = node.arguments.find(std::string(info.name));
    if (found == node.arguments.end()) {
      if (!info.required) continue;
      return Status(StatusCode::kCorrupt, fmt::format("{}: argument \"{}\" is missing", node_text(node), info.name));
    }
    const bool none = std::holds_alternative<None>(found->second);
    if (none ? !info.may_be_none : !has_type(found->second, info.type)) {
      return Status(StatusCode::kCorrupt, fmt::format("{}: argument \"{}\" is not of type {}{}", node_text(node),
                                                      info.name, info.type, info.may_be_none ? " or None" : ""));
    }
  }
  std::vector<std::string_view> names;
  names.reserve(known.size());
  for (const auto& info : known) names.push_back(info.name);
  for (const auto& item : node.arguments) {
    if (std::find(names.begin(), names.end(), item.first) == names.end()) {
      return Status(StatusCode::kCorrupt,
                    fmt::format("{}: {}", node_text(node), unknown_name("argument", item.first, names).message()));
    }
  }
  return {};
}

}  // namespace

std::span<const OpInfo> known_ops() { return kOps; }

Status check_ops(const Graph& graph) {
  for (const auto& node : graph.nodes) {
    const auto* const found =
        std::find_if(std::begin(kOps), std::end(kOps), [&](const OpInfo& op) { return op.name == node.op; });
    if (found == std::end(kOps)) {
      std::vector<std::string_view> names;
      for (const auto& op : kOps) names.push_back(op.name);
      const auto near = nearest_name(node.op, names);
      return Status(StatusCode::kUnsupported,
                    fmt::format("unsupported op {}{}", node_text(node),
                                near ? fmt::format("; the nearest supported op is \"{}\"", *near) : ""));
    }
    ACCORD_RETURN_IF_ERROR(check_arguments(node, *found));
  }
  return {};
}

}  // namespace accord::engine
