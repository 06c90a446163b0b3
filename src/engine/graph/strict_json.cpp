// JSON is parsed twice: first by a checker that sees each event with its position (depth, duplicate keys, syntax),
// then into a document. The second pass cannot fail, but still runs without exceptions.

#include "engine/graph/strict_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/text.hpp"

namespace accord::engine {
namespace {

constexpr std::size_t kMaxDepth = 16;

// nlohmann's SAX interface: each function returns false to stop, after setting `error`.
class Checker : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string error;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return depth_ok();
  }
  bool end_object() override {
    keys_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override {
    keys_.emplace_back();
    return depth_ok();
  }
  bool end_array() override {
    keys_.pop_back();
    return true;
  }
  bool key(string_t& key) override {
    if (keys_.back().insert(key).second) return true;
    error = fmt::format("the key \"{}\" appears twice in one object", key.substr(0, kMaxNameBytes));
    return false;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    error = fmt::format("invalid JSON at byte {}", position);
    return false;
  }

 private:
  bool depth_ok() {
    if (keys_.size() <= kMaxDepth) return true;
    error = fmt::format("is nested deeper than {}", kMaxDepth);
    return false;
  }
  std::vector<std::set<std::string>> keys_;  // keys of the open objects; arrays have an empty set
};

}  // namespace

Status corrupt_at(std::string_view where, std::string_view message) {
  return Status(StatusCode::kCorrupt, fmt::format("{}: {}", where, message));
}

Result<nlohmann::json> parse_json(std::string_view text, std::string_view what, std::size_t max_bytes) {
  if (text.size() > max_bytes) {
    return corrupt_at(what,
                      fmt::format("it has {}, at most {} are allowed", bytes_text(text.size()), bytes_text(max_bytes)));
  }
  Checker checker;
  if (!nlohmann::json::sax_parse(text, &checker)) return corrupt_at(what, checker.error);
  auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return corrupt_at(what, "invalid JSON");
  return json;
}

Result<std::int64_t> read_integer(const nlohmann::json& json, std::string_view where, std::int64_t min,
                                  std::int64_t max) {
  if (!json.is_number_integer()) return corrupt_at(where, "expected a whole number");
  const bool too_large = json.is_number_unsigned() && json.get<std::uint64_t>() > std::uint64_t{INT64_MAX};
  const auto value = too_large ? INT64_MAX : json.get<std::int64_t>();
  if (too_large || value < min || value > max) {
    return corrupt_at(where, fmt::format("{} is not between {} and {}", json.dump(), min, max));
  }
  return value;
}

Result<std::string> read_text(const nlohmann::json& json, std::string_view where, std::size_t max_bytes) {
  if (!json.is_string()) return corrupt_at(where, "expected text");
  const auto& text = json.get_ref<const std::string&>();
  if (text.size() > max_bytes) return corrupt_at(where, fmt::format("is longer than {} bytes", max_bytes));
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(text.begin(), text.end(), is_control)) return corrupt_at(where, "has control characters");
  return text;
}

bool is_hexadecimal(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Result<JsonObject> JsonObject::read(const nlohmann::json& json, std::string where,
                                    std::span<const std::string_view> required,
                                    std::span<const std::string_view> optional) {
  if (!json.is_object()) return corrupt_at(where, "expected an object");
  std::vector<std::string_view> known(required.begin(), required.end());
  known.insert(known.end(), optional.begin(), optional.end());
  for (const auto& item : json.items()) {
    if (std::find(known.begin(), known.end(), item.key()) == known.end()) {
      const auto key = std::string_view(item.key()).substr(0, kMaxNameBytes);
      return corrupt_at(where, unknown_name("key", key, known).message());
    }
  }
  for (const auto key : required) {
    if (!json.contains(key)) return corrupt_at(where, fmt::format("\"{}\" is missing", key));
  }
  return JsonObject(json, std::move(where));
}

Result<std::int64_t> JsonObject::integer(std::string_view key, std::int64_t min, std::int64_t max) const {
  return read_integer(at(key), fmt::format("{}: {}", where_, key), min, max);
}

Result<std::string> JsonObject::text(std::string_view key, std::size_t max_bytes) const {
  return read_text(at(key), fmt::format("{}: {}", where_, key), max_bytes);
}

Result<std::string> JsonObject::name(std::string_view key) const {
  ACCORD_ASSIGN_OR_RETURN(auto name, text(key, kMaxNameBytes));
  if (name.empty()) return corrupt(fmt::format("{}: is empty", key));
  return name;
}

Result<std::string> JsonObject::hexadecimal(std::string_view key, std::size_t digits) const {
  ACCORD_ASSIGN_OR_RETURN(auto hash, text(key, digits));
  if (hash.size() != digits || !is_hexadecimal(hash)) {
    return corrupt(fmt::format("{}: expected {} lower-case hexadecimal digits", key, digits));
  }
  return hash;
}

Result<const nlohmann::json*> JsonObject::array(std::string_view key, std::size_t max_items) const {
  const auto& json = at(key);
  if (!json.is_array()) return corrupt(fmt::format("{}: expected an array", key));
  if (json.size() > max_items) return corrupt(fmt::format("{}: has more than {} entries", key, max_items));
  return &json;
}

Status JsonObject::corrupt(std::string_view message) const { return corrupt_at(where_, message); }

}  // namespace accord::engine
