#pragma once
// Access to a node's arguments by name, and text that says where a node comes from.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.hpp"

namespace accord::engine {

/// Returns text for messages: "aten.linear.default" in module "encoder.layer.0" (model.py:12).
std::string node_text(const Node& node);

/// Returns `op` without its overload: "aten.linear" for "aten.linear.default".
std::string_view op_family(std::string_view op);

/// Returns the argument, or nullptr if it is left out or None.
const Argument* find_argument(const Node& node, std::string_view name);

/// Returns the tensor that the argument names, or nullopt if it is left out, None, or not a tensor.
std::optional<ValueId> tensor_argument(const Node& node, std::string_view name);

/// Returns a constant whole number, or `default_value` if the argument is left out. Fails with kCorrupt, naming the
/// node, if it is anything else.
Result<std::int64_t> integer_argument(const Node& node, std::string_view name,
                                      std::optional<std::int64_t> default_value = {});

/// Returns constant whole numbers. Empty if the argument is left out; a single number counts as a list of one.
Result<std::vector<std::int64_t>> integers_argument(const Node& node, std::string_view name);

/// Returns a truth value, or `default_value` if the argument is left out. Also accepts the numbers 0 and 1.
Result<bool> flag_argument(const Node& node, std::string_view name, bool default_value);

/// Calls `visit` for every tensor that the node reads, in the order of the arguments' names. Skips each None in a
/// list.
void for_each_input(const Node& node, const std::function<void(ValueId)>& visit);

/// The same, but `visit` may replace the ids.
void for_each_input(Node& node, const std::function<void(ValueId&)>& visit);

/// Returns the logical group of a collective, or nullopt for other nodes.
std::optional<std::string> group_argument(const Node& node);

/// Returns `dim` counted from the front: -1 is the last of `dims` dimensions. Fails with kCorrupt, naming the node, if
/// the dimension does not exist.
Result<int> dimension_index(const Node& node, std::int64_t dim, int dims);

}  // namespace accord::engine
