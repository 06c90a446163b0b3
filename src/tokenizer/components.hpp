#pragma once
// Shared by the readers of components: the check of a component's type and keys, and flattening of nested sequences.

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_node.hpp"

namespace accord::tokenizer {

inline constexpr int kMaxNesting = 16;

/// Returns the "type" of a component. Fails with kUnsupported if it is not one of `known`; the error names the type
/// and the known ones.
inline Result<std::string> component_type(const JsonNode& node, std::string_view kind,
                                          std::span<const std::string_view> known) {
  ACCORD_ASSIGN_OR_RETURN(const JsonNode type_node, node.required("type"));
  ACCORD_ASSIGN_OR_RETURN(const std::string type, type_node.text());
  if (std::ranges::find(known, type) != known.end()) return type;
  return type_node.error_as(StatusCode::kUnsupported,
                            fmt::format("unsupported {}: {}", kind, unknown_name("type", type, known).message()));
}

/// Fails if `node` has a key other than "type", `required` and `optional`, or lacks a required one.
inline Status check_component(const JsonNode& node, std::span<const std::string_view> required,
                              std::span<const std::string_view> optional = {}) {
  std::vector<std::string_view> known = {"type"};
  known.insert(known.end(), required.begin(), required.end());
  known.insert(known.end(), optional.begin(), optional.end());
  for (const auto& [key, value] : node.json().items()) {
    if (std::ranges::find(known, key) == known.end()) return node.error(unknown_name("key", key, known).message());
  }
  for (const std::string_view key : required) {
    if (!node.has(key)) return node.error(fmt::format("lacks \"{}\"", key));
  }
  return {};
}
inline Status check_component(const JsonNode& node, std::initializer_list<std::string_view> required,
                              std::initializer_list<std::string_view> optional = {}) {
  return check_component(node, std::span(required.begin(), required.size()),
                         std::span(optional.begin(), optional.size()));
}

inline bool is_null(const JsonNode& node, std::string_view key) {
  return !node.has(key) || node.at(key).json().is_null();
}

/// Returns the value of `node` at `key`, or `default_value` if there is none.
inline Result<bool> boolean_or(const JsonNode& node, std::string_view key, bool default_value) {
  if (is_null(node, key)) return default_value;
  return node.at(key).boolean();
}

/// Reads a text of exactly one character.
inline Result<std::string> read_character(const JsonNode& node) {
  ACCORD_ASSIGN_OR_RETURN(std::string text, node.text());
  const bool is_one = !text.empty() && std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }) == 1;
  if (!is_one) return node.error("expected one character");
  return text;
}

/// Appends the component at `node` to `list`. If it is a "Sequence" with components under `key`, appends each of
/// those. `read` reads one component.
template <typename T, typename Read>
Status read_sequence(const JsonNode& node, std::string_view key, std::vector<T>& list, Read read, int depth = 0) {
  if (depth > kMaxNesting) return node.error(fmt::format("sequences nest deeper than {}", kMaxNesting));
  const bool is_sequence = node.has("type") && node.at("type").json() == "Sequence";
  if (!is_sequence) {
    ACCORD_ASSIGN_OR_RETURN(T component, read(node));
    list.push_back(std::move(component));
    return {};
  }
  ACCORD_RETURN_IF_ERROR(check_component(node, {key}));
  ACCORD_ASSIGN_OR_RETURN(const auto items, node.at(key).items());
  for (const JsonNode& item : items) ACCORD_RETURN_IF_ERROR(read_sequence(item, key, list, read, depth + 1));
  return {};
}

}  // namespace accord::tokenizer
