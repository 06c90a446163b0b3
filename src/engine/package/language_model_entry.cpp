#include "engine/package/language_model_entry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "engine/graph/strict_json.hpp"
#include "engine/package/manifest_file.hpp"

namespace accord::engine {
namespace {

constexpr std::int64_t kMaxContext = (std::int64_t{1} << 31) - 1;
constexpr std::size_t kMaxTokens = 1024;
constexpr std::size_t kMaxAdapters = 1024;

Result<std::vector<std::int32_t>> read_tokens(const JsonObject& object, std::string_view key) {
  ACCORD_ASSIGN_OR_RETURN(const auto* items, object.array(key, kMaxTokens));
  std::vector<std::int32_t> tokens;
  for (const auto& item : *items) {
    ACCORD_ASSIGN_OR_RETURN(const auto token,
                            read_integer(item, fmt::format("{}: {}", object.where(), key), 0, kMaxContext));
    tokens.push_back(static_cast<std::int32_t>(token));
  }
  return tokens;
}

Result<std::vector<std::string>> read_names(const JsonObject& object, std::string_view key) {
  ACCORD_ASSIGN_OR_RETURN(const auto* items, object.array(key, kMaxAdapters));
  std::vector<std::string> names;
  for (const auto& item : *items) {
    ACCORD_ASSIGN_OR_RETURN(std::string name,
                            read_text(item, fmt::format("{}: {}", object.where(), key), kMaxNameBytes));
    if (name.empty()) return object.corrupt(fmt::format("{}: a name is empty", key));
    if (std::ranges::find(names, name) != names.end())
      return object.corrupt(fmt::format("{}: \"{}\" appears twice", key, name));
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace

Result<LanguageModelEntry> parse_language_model_entry(const nlohmann::json& entry, bool has_encoder) {
  static constexpr std::array<std::string_view, 2> kKeys = {"max_context", "stop_tokens"};
  static constexpr std::array<std::string_view, 3> kOptional = {"start_tokens", "source_token", "adapters"};
  const auto where = fmt::format("{}: language_model", kManifestName);
  ACCORD_ASSIGN_OR_RETURN(const auto object, JsonObject::read(entry, where, kKeys, kOptional));
  LanguageModelEntry model;
  ACCORD_ASSIGN_OR_RETURN(model.max_context, object.integer("max_context", 1, kMaxContext));
  ACCORD_ASSIGN_OR_RETURN(model.stop_tokens, read_tokens(object, "stop_tokens"));
  const bool attends = object.has("start_tokens"), inserts = object.has("source_token");
  if ((attends && inserts) || (attends || inserts) != has_encoder)
    return object.corrupt("a model has either start_tokens or a source_token if, and only if, it has an encoder");
  if (attends) {
    ACCORD_ASSIGN_OR_RETURN(model.start_tokens, read_tokens(object, "start_tokens"));
  }
  if (inserts) {
    ACCORD_ASSIGN_OR_RETURN(const auto token, object.integer("source_token", 0, kMaxContext));
    model.source_token = static_cast<std::int32_t>(token);
  }
  if (object.has("adapters")) {
    ACCORD_ASSIGN_OR_RETURN(model.adapters, read_names(object, "adapters"));
  }
  return model;
}

}  // namespace accord::engine
