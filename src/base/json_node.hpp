#pragma once
// A JSON text as a tree, read through a cursor that knows its own path, so that every error names the position.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"
#include "base/text.hpp"

namespace accord {

/// A node of the tree and its path. The tree must outlive it. All errors are kCorrupt: "plan JSON: programs[0].lanes:
/// ...".
class JsonNode {
 public:
  using Json = nlohmann::json;

  /// `format`: name of the text's format for errors; must outlive the node.
  JsonNode(const Json& json, std::string_view format, std::string path)
      : json_(&json), format_(format), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const Json& json() const { return *json_; }
  Status error(std::string_view problem) const { return error_as(StatusCode::kCorrupt, problem); }
  Status error_as(StatusCode code, std::string_view problem) const {
    return {code, fmt::format("{}: {}{}{}", format_, path_, path_.empty() ? "" : ": ", problem)};
  }

  /// Checks that the node is an object with exactly these keys.
  Status check_keys(std::span<const std::string_view> keys) const {
    if (!json_->is_object()) return error("expected an object");
    for (const auto& [key, value] : json_->items()) {
      if (std::ranges::find(keys, key) == keys.end()) return error(unknown_name("key", key, keys).message());
    }
    for (const std::string_view key : keys) {
      if (!json_->contains(key)) return error(fmt::format("lacks \"{}\"", key));
    }
    return {};
  }
  bool has(std::string_view key) const { return json_->is_object() && json_->contains(key); }
  /// REQUIRES: has(key).
  JsonNode at(std::string_view key) const {
    return {(*json_)[std::string(key)], format_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key)};
  }
  Result<JsonNode> required(std::string_view key) const {
    if (!json_->is_object()) return error("expected an object");
    if (!has(key)) return error(fmt::format("lacks \"{}\"", key));
    return at(key);
  }

  Result<std::vector<JsonNode>> items() const {
    if (!json_->is_array()) return error("expected a list");
    std::vector<JsonNode> nodes;
    for (std::size_t i = 0; i < json_->size(); ++i)
      nodes.emplace_back((*json_)[i], format_, fmt::format("{}[{}]", path_, i));
    return nodes;
  }
  /// The items of the list at `key`; empty if the key is absent.
  Result<std::vector<JsonNode>> items_at(std::string_view key) const {
    if (!has(key)) return std::vector<JsonNode>();
    return at(key).items();
  }

  /// Text for use in messages. Control characters, which a terminal would interpret, are rejected.
  Result<std::string> name() const {
    ACCORD_ASSIGN_OR_RETURN(std::string name, text());
    for (std::size_t i = 0; i < name.size(); ++i) {
      const auto byte = static_cast<unsigned char>(name[i]);
      const bool is_c1 = byte == 0xc2 && i + 1 < name.size() && static_cast<unsigned char>(name[i + 1]) < 0xa0;
      if (byte < 0x20 || byte == 0x7f || is_c1)
        return error(fmt::format("{} has a control character", quoted_text(name)));
    }
    return name;
  }

  Result<int> integer() const {
    constexpr auto kMax = std::numeric_limits<int>::max();
    const bool fits = json_->is_number_unsigned() ? json_->get<std::uint64_t>() <= kMax
                                                  : json_->is_number_integer() && json_->get<std::int64_t>() >= -kMax;
    if (!fits) return error("expected a whole number of 32 bits");
    return json_->get<int>();
  }
  /// A whole number from `min` to `max`.
  Result<int> integer(int min, int max) const {
    ACCORD_ASSIGN_OR_RETURN(const int number, integer());
    if (number >= min && number <= max) return number;
    return max < min ? error(fmt::format("{} is out of bounds: there are none", number))
                     : error(fmt::format("{} is out of bounds: {} to {}", number, min, max));
  }
  Result<bool> boolean() const {
    if (!json_->is_boolean()) return error("expected true or false");
    return json_->get<bool>();
  }
  Result<std::string> text() const {
    if (!json_->is_string()) return error("expected a text");
    return json_->get<std::string>();
  }

  /// One of `values`, by its name.
  template <typename Enum>
  Result<Enum> one_of(std::string_view what, std::initializer_list<Enum> values) const {
    ACCORD_ASSIGN_OR_RETURN(const std::string name, text());
    std::vector<std::string_view> names;
    for (const Enum value : values) {
      if (to_string(value) == name) return value;
      names.push_back(to_string(value));
    }
    return error(unknown_name(what, name, names).message());
  }

 private:
  const Json* json_;
  std::string_view format_;
  std::string path_;
};

/// A parsed text.
class JsonTree {
 public:
  /// Fails with kCorrupt if `text` is not JSON. `format` must outlive the tree.
  static Result<JsonTree> parse(std::string_view text, std::string_view format) {
    try {
      return JsonTree(std::make_unique<nlohmann::json>(nlohmann::json::parse(text)), format);
    } catch (const nlohmann::json::exception& exception) {
      return Status(StatusCode::kCorrupt, fmt::format("{}: {}", format, exception.what()));
    }
  }
  JsonNode root() const { return {*json_, format_, ""}; }

 private:
  JsonTree(std::unique_ptr<nlohmann::json> json, std::string_view format) : json_(std::move(json)), format_(format) {}

  std::unique_ptr<nlohmann::json> json_;
  std::string_view format_;
};

}  // namespace accord
