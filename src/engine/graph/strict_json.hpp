#pragma once
// Reads JSON from files that may be damaged or hostile. Every error says where it is and what was expected; nothing
// throws.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "accord/status.hpp"

namespace accord::engine {

/// The longest name (of a value, tensor, file, op or module) that is accepted, in bytes.
inline constexpr std::size_t kMaxNameBytes = 512;

/// Parses `text`, the contents of a file called `what`. Fails with kCorrupt, naming the byte at fault, if it is not
/// JSON, nests deeper than 16, has a duplicate key in an object, or is larger than `max_bytes`.
Result<nlohmann::json> parse_json(std::string_view text, std::string_view what, std::size_t max_bytes);

/// One JSON object and its location ("graph.json: node 12"), for checked reads. A view: the JSON must outlive it.
class JsonObject {
 public:
  /// Fails with kCorrupt unless `json` is an object with all keys of `required` and no others except those of
  /// `optional`. The error for an unknown key names the nearest known one.
  static Result<JsonObject> read(const nlohmann::json& json, std::string where,
                                 std::span<const std::string_view> required,
                                 std::span<const std::string_view> optional = {});

  bool has(std::string_view key) const { return json_->contains(key); }
  /// REQUIRES: has(key).
  const nlohmann::json& at(std::string_view key) const { return *json_->find(key); }
  const std::string& where() const { return where_; }

  Result<std::int64_t> integer(std::string_view key, std::int64_t min, std::int64_t max) const;
  /// Returns any text of at most `max_bytes` without control characters.
  Result<std::string> text(std::string_view key, std::size_t max_bytes) const;
  /// Like text(), but the text is neither empty nor longer than kMaxNameBytes.
  Result<std::string> name(std::string_view key) const;
  /// Returns a text of exactly `digits` lower-case hexadecimal digits.
  Result<std::string> hexadecimal(std::string_view key, std::size_t digits) const;
  /// Returns an array of at most `max_items` entries.
  Result<const nlohmann::json*> array(std::string_view key, std::size_t max_items) const;

  /// Returns kCorrupt with the text "`where`: `message`".
  Status corrupt(std::string_view message) const;

 private:
  JsonObject(const nlohmann::json& json, std::string where) : json_(&json), where_(std::move(where)) {}
  const nlohmann::json* json_;
  std::string where_;
};

/// Returns kCorrupt with the text "`where`: `message`".
Status corrupt_at(std::string_view where, std::string_view message);

/// Returns `json` as a whole number in [min, max]. Fails with kCorrupt at `where` otherwise.
Result<std::int64_t> read_integer(const nlohmann::json& json, std::string_view where, std::int64_t min,
                                  std::int64_t max);
/// Returns `json` as text of at most `max_bytes` without control characters.
Result<std::string> read_text(const nlohmann::json& json, std::string_view where, std::size_t max_bytes);

/// Returns true if `text` consists of lower-case hexadecimal digits only.
bool is_hexadecimal(std::string_view text);

}  // namespace accord::engine
