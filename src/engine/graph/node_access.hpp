#pragma once
// Reading a node's arguments by name, and telling where a node comes from.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// "aten.linear.default" in module "encoder.layer.0" (model.py:12): for messages.
std::string node_text(const Node& node);

/// `op` without its overload: "aten.linear" of "aten.linear.default".
std::string_view op_family(std::string_view op);

/// The argument, or nullptr if it is left out or None.
const Argument* find_argument(const Node& node, std::string_view name);

/// The tensor that the argument names; nullopt if it is left out, None, or no tensor.
std::optional<ValueId> tensor_argument(const Node& node, std::string_view name);

/// A constant whole number; `otherwise` if left out; kCorrupt, naming the node, if it is something else.
Result<std::int64_t> integer_argument(const Node& node, std::string_view name,
                                      std::optional<std::int64_t> otherwise = {});

/// Constant whole numbers; empty if left out; a single number counts as a list of one.
Result<std::vector<std::int64_t>> integers_argument(const Node& node, std::string_view name);

/// A truth value; `otherwise` if left out. Also takes a number, 0 or 1.
Result<bool> flag_argument(const Node& node, std::string_view name, bool otherwise);

/// Calls `visit` for every tensor that the node reads, in the order of the arguments' names; a None in a list is left out.
void for_each_input(const Node& node, const std::function<void(ValueId)>& visit);

/// The same with the right to change them.
void for_each_input(Node& node, const std::function<void(ValueId&)>& visit);

/// The logical group of a collective; nullopt for other nodes.
std::optional<std::string> group_argument(const Node& node);

/// `dim` counted from the front: -1 is the last of `dims`; kCorrupt, naming the node, if there is none.
Result<int> dimension_index(const Node& node, std::int64_t dim, int dims);

}  // namespace accord::engine
