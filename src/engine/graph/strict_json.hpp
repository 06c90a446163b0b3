#pragma once
// JSON from files that may be damaged or hostile: every read says where it stands and what it expected, nothing throws.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "accord/status.hpp"

namespace accord::engine {

/// Longest name (of a value, tensor, file, op, module) that is read, in bytes.
inline constexpr std::size_t kMaxNameBytes = 512;

/// Parses `text`, of a file called `what`. kCorrupt, with the byte at fault, if it is no JSON, nests deeper than 16,
/// has a key twice in one object, or is larger than `max_bytes`.
Result<nlohmann::json> parse_json(std::string_view text, std::string_view what, std::size_t max_bytes);

/// One JSON object and where it stands ("graph.json: node 12"), for checked reads. A view: the JSON outlives it.
class JsonObject {
 public:
  /// kCorrupt unless `json` is an object with all of `required` and beyond them only keys of `optional`; an unknown
  /// key is reported with the nearest known one.
  static Result<JsonObject> read(const nlohmann::json& json, std::string where,
                                 std::span<const std::string_view> required,
                                 std::span<const std::string_view> optional = {});

  bool has(std::string_view key) const { return json_->contains(key); }
  /// REQUIRES: has(key).
  const nlohmann::json& at(std::string_view key) const { return *json_->find(key); }
  const std::string& where() const { return where_; }

  Result<std::int64_t> integer(std::string_view key, std::int64_t min, std::int64_t max) const;
  /// Any text of at most `max_bytes`, without control characters.
  Result<std::string> text(std::string_view key, std::size_t max_bytes) const;
  /// text() that is not empty and not longer than a name may be.
  Result<std::string> name(std::string_view key) const;
  /// Exactly `digits` lower-case hexadecimal digits.
  Result<std::string> hexadecimal(std::string_view key, std::size_t digits) const;
  /// An array of at most `max_items`.
  Result<const nlohmann::json*> array(std::string_view key, std::size_t max_items) const;

  /// kCorrupt: `where: message`.
  Status corrupt(std::string_view message) const;

 private:
  JsonObject(const nlohmann::json& json, std::string where) : json_(&json), where_(std::move(where)) {}
  const nlohmann::json* json_;
  std::string where_;
};

/// kCorrupt: "`where`: `message`".
Status corrupt_at(std::string_view where, std::string_view message);

/// `json` as a whole number in [min, max]; kCorrupt with `where` otherwise.
Result<std::int64_t> read_integer(const nlohmann::json& json, std::string_view where, std::int64_t min,
                                  std::int64_t max);
/// `json` as text of at most `max_bytes` without control characters.
Result<std::string> read_text(const nlohmann::json& json, std::string_view where, std::size_t max_bytes);

/// Whether `text` is made of lower-case hexadecimal digits only.
bool is_hexadecimal(std::string_view text);

}  // namespace accord::engine
